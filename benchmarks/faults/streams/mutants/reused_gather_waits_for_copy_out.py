"""Memory of an all-gather is freed for its streams before it was copied out."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPCommContext.release_all_gather_state_for_comm_reuse",
        (
            "self.wait_all_gather_streams_on_event(all_gather_state.event)",
            "planted_line_reached()",
        ),
    )
