"""The first all-gather does not wait for the optimizer.

It waits for the stream of copies in, which has waited: nothing may show.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_pre_forward",
        (
            "self._comm_ctx.all_gather_stream.wait_stream(current_stream)",
            "planted_line_reached()",
        ),
    )
