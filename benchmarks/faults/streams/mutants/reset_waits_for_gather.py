"""Reset_iter_state does not wait for the all-gather that it drops."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._reset_iter_state",
        (
            """
            if (event := self._all_gather_result.all_gather_event) is not None:
                current_stream.wait_event(event)
            """,
            "planted_line_reached()",
        ),
    )
