"""The copy out of an all-gather does not wait for it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_all_gather_copy_out",
        (
            """
            if all_gather_event is not None:  # sync op
                device_handle.current_stream().wait_event(all_gather_event)
            """,
            "planted_line_reached()",
        ),
    )
