"""The input of the last reduce-scatter is freed before it has run.

The end of a backward waits for what comes after the reduce-scatter: nothing may show.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._end_backward_iteration",
        (
            """
            if rs_state.event is not None:
                rs_state.allocation_stream.wait_event(rs_state.event)
            """,
            "planted_line_reached()",
        ),
    )
