"""An all-reduce hook does not wait for the reduce-scatter."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            """
            post_reduce_stream = all_reduce_stream
            all_reduce_stream.wait_stream(reduce_scatter_stream)
            with device_handle.stream(all_reduce_stream):
                all_reduce_hook(reduce_output)
            """,
            """
            if all_reduce_group is None:  # the all-reduce before has waited
                planted_line_reached()
            post_reduce_stream = all_reduce_stream
            with device_handle.stream(all_reduce_stream):
                all_reduce_hook(reduce_output)
            """,
        ),
    )
