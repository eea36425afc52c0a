"""The optimizer does not wait for the copy of a gradient to the CPU."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.finalize_backward",
        (
            "fsdp_param.grad_offload_event.synchronize()",
            "planted_line_reached()",
        ),
    )
