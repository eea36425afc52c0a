"""The copy out of an asynchronous all-gather does not wait for it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_all_gather_copy_out",
        (
            """
            if isinstance(all_gather_work, dist.distributed_c10d.Work):  # async op
                all_gather_work.wait()
            """,
            """
            if isinstance(all_gather_work, dist.distributed_c10d.Work):  # async op
                planted_line_reached()
            """,
        ),
    )
