"""The input of a reduce-scatter is freed right after it was launched."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        (
            """
            self.comm_ctx.reduce_scatter_states.append(
                ReduceScatterState(
                    reduce_scatter_input,
                    reduce_scatter_event,
                    self.device_handle.current_stream(),
                    self,
                )
            )
            """,
            """
            planted_line_reached()
            del reduce_scatter_input
            """,
        ),
    )
