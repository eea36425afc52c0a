"""Memory of the last all-gather of a forward is freed before it was copied out.

The copy out ran on the stream that waits: nothing may show.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPCommContext.release_all_gather_state_on_current_stream",
        (
            "self.device_handle.current_stream().wait_event(all_gather_state.event)",
            "planted_line_reached()",
        ),
    )
