"""The end of a sum over shards is recorded before it.

What reads the sum runs on the same stream: nothing may show.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            """
            partial_reduce_output += reduce_output
            """,
            """
            partial_reduce_output += reduce_output
            planted_line_reached()
            """,
        ),
        (
            """
            post_reduce_stream.record_event(),
            all_reduce_input,
            all_reduce_event,
            partial_reduce_output,
            """,
            """
            reduce_scatter_event,
            all_reduce_input,
            all_reduce_event,
            partial_reduce_output,
            """,
        ),
    )
