"""An all-gather that nobody has used is freed before it has run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.finalize_backward",
        (
            """
            if (event := self._all_gather_result.all_gather_event) is not None:
                self.device_handle.current_stream().wait_event(event)
            """,
            "planted_line_reached()",
        ),
    )
