"""A sum over shards is cast on the stream that computes."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        (
            """
            with self.device_handle.stream(rs_stream):
                partial_input = self._prepare_partial_reduce_output(
                    fsdp_params_with_grad, partial_sizes, reduce_dtype
                )
            """,
            """
            if self._partial_reduce_output is not None:
                planted_line_reached()
            partial_input = self._prepare_partial_reduce_output(
                fsdp_params_with_grad, partial_sizes, reduce_dtype
            )
            """,
        ),
    )
