"""A reduction does not wait for the all-reduce of its group before.

It waits for the end of that reduction as well, which comes later: nothing may show.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._wait_for_post_backward",
        (
            "self.device_handle.current_stream().wait_event(self._all_reduce_state.event)",
            "planted_line_reached()",
        ),
    )
