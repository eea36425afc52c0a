"""The input of a reduce-scatter is freed before it has run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        (
            "oldest.allocation_stream.wait_event(oldest.event)",
            "planted_line_reached()",
        ),
    )
