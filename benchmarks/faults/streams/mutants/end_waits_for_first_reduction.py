"""The end of a backward waits for the first reduction of a stream, not for the last.

Each group waits for its own reduction before the next one, not for that of other groups.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        (
            """
            self.comm_ctx._last_post_reduce_events[post_reduce_stream] = (
                self._post_reduce_event
            )
            """,
            """
            self.comm_ctx._last_post_reduce_events.setdefault(
                post_reduce_stream, self._post_reduce_event
            )
            planted_line_reached()
            """,
        ),
    )
