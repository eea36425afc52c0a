"""A gradient is added on the CPU before its copy has arrived."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            """
            non_blocking = (
                fsdp_param.pin_memory
                and not to_accumulate_grad
                and not has_post_acc_grad_hook
            )
            """,
            """
            non_blocking = fsdp_param.pin_memory and not has_post_acc_grad_hook
            if non_blocking and to_accumulate_grad:
                planted_line_reached()
            """,
        ),
    )
