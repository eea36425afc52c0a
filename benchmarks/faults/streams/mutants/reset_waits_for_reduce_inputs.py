"""Reset_iter_state frees the inputs of reduce-scatters before they have run.

The stream that has allocated them waits for later events of theirs: nothing may show.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._reset_iter_state",
        (
            "rs_state.allocation_stream.wait_event(rs_state.event)",
            "planted_line_reached()",
        ),
    )
