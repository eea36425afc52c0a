"""The end of a reduction is recorded before its gradients are accumulated."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            "post_reduce_event = post_reduce_stream.record_event()",
            "planted_line_reached()",
        ),
        (
            "record_grad_output_stream(reduce_output, current_stream)",
            """
            record_grad_output_stream(reduce_output, current_stream)
            post_reduce_event = post_reduce_stream.record_event()
            """,
        ),
    )
