"""A sum over shards is cast on another stream before what computes is done."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        (
            "rs_stream.wait_stream(self.device_handle.current_stream())",
            "planted_line_reached()",
        ),
    )
