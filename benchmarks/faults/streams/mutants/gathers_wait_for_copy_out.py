"""The stream of all-gathers does not wait for the copy out of the last one.

It waits for the stream of copies in before each all-gather, which has waited: nothing may show.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPCommContext.wait_all_gather_streams_on_event",
        (
            "self.all_gather_stream.wait_event(event)",
            "planted_line_reached()",
        ),
    )
