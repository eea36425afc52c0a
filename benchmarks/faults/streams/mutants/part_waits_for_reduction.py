"""A group of several modules of which one ran does not wait for its reduction.

torch's source leaves open whether CUDA needs this one. By the order of streams and of the
allocator it does not: what the reduction reads is kept, and what it writes belongs to its
stream.
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
            self.device_handle.current_stream().wait_event(
                self._post_reduce_event
            )
            """,
            "planted_line_reached()",
        ),
    )
