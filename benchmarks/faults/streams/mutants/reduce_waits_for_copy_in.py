"""A reduce-scatter does not wait for the copy into its input."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            "reduce_scatter_stream.wait_stream(current_stream)",
            "planted_line_reached()",
        ),
    )
