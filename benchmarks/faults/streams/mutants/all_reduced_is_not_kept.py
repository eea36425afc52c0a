"""What is being all-reduced is freed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        (
            """
            self._all_reduce_state = AllReduceState(
                all_reduce_input, all_reduce_event
            )
            """,
            "planted_line_reached()",
        ),
    )
