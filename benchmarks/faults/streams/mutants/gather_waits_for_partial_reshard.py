"""An all-gather does not wait for the shards that a forward left on a smaller mesh."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.unshard",
        (
            """
            self.comm_ctx.wait_all_gather_streams_on_event(
                self._reshard_after_forward_event
            )
            self._reshard_after_forward_event = None
            """,
            """
            planted_line_reached()
            self._reshard_after_forward_event = None
            """,
        ),
    )
