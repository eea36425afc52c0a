"""Reset_iter_state does not wait for the reductions that it drops.

Each group waits for its own last reduction as well: nothing may show.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._reset_iter_state",
        (
            "current_stream.wait_event(event)",
            "planted_line_reached()",
        ),
    )
