"""The output of a reduce-scatter is allocated on the stream that computes."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            """
            reduce_output = reduce_scatter_comm.allocate(
                (reduce_scatter_output_numel,),
                dtype=reduce_dtype,
                device=device,
            )
            """,
            """
            planted_line_reached()
            with device_handle.stream(current_stream):
                reduce_output = reduce_scatter_comm.allocate(
                    (reduce_scatter_output_numel,),
                    dtype=reduce_dtype,
                    device=device,
                )
            """,
        ),
    )
