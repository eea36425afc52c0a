"""What an all-reduce hook reads is freed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        (
            """
            all_reduce_hook(reduce_output)
            # The hook and the post-reduce ops below read the RS output off
            # the RS stream. Without native HSDP nothing else holds it, so
            # hold it the same way as the HSDP AR buffer (see AllReduceState).
            all_reduce_input = reduce_output
            """,
            """
            all_reduce_hook(reduce_output)
            if all_reduce_group is None:  # else it is kept for the all-reduce
                planted_line_reached()
            """,
        ),
    )
