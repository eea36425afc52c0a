"""The event of a reduce-scatter is recorded before it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            "reduce_scatter_event = reduce_scatter_stream.record_event()",
            "planted_line_reached()",
        ),
        (
            "_div_if_needed(reduce_scatter_input, predivide_factor)",
            """
            _div_if_needed(reduce_scatter_input, predivide_factor)
            reduce_scatter_event = reduce_scatter_stream.record_event()
            """,
        ),
    )
