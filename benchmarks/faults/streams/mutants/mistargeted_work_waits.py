"""An asynchronous all-gather that nobody has used is freed before it has run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.finalize_backward",
        (
            "work.wait()",
            "planted_line_reached()",
        ),
    )
