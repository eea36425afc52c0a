"""The event of a copy of a gradient to the CPU is recorded before it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            """
            new_sharded_grad = new_sharded_grad.to(
                torch.device("cpu"), non_blocking=non_blocking
            )
            if non_blocking:
                # Record an event on which to block the CPU thread to
                # ensure that the D2H copy finishes before the optimizer
                fsdp_param.grad_offload_event = post_reduce_stream.record_event()
            """,
            """
            if non_blocking:
                planted_line_reached()
                fsdp_param.grad_offload_event = post_reduce_stream.record_event()
            new_sharded_grad = new_sharded_grad.to(
                torch.device("cpu"), non_blocking=non_blocking
            )
            """,
        ),
    )
