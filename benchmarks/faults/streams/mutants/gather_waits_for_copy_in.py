"""An all-gather does not wait for the copy into its input."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_all_gather",
        (
            "all_gather_stream.wait_stream(all_gather_copy_in_stream)",
            "planted_line_reached()",
        ),
    )
