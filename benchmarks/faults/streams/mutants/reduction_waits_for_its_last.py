"""A reduction does not wait for the last one of its group."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._wait_for_post_backward",
        (
            """
            self.device_handle.current_stream().wait_event(self._post_reduce_event)
            self._post_reduce_event = None
            """,
            """
            planted_line_reached()
            self._post_reduce_event = None
            """,
        ),
    )
