"""The end of a backward does not wait for the last reduction."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._end_backward_iteration",
        (
            "current_stream.wait_event(event)",
            "planted_line_reached()",
        ),
    )
