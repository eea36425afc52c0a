"""The shards that a forward leaves on a smaller mesh are not recorded."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.reshard",
        (
            """
            if self._reshard_after_forward_event is not None:
                self._reshard_after_forward_event.record()
            """,
            "planted_line_reached()",
        ),
    )
