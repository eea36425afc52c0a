"""All-gathers in backward reuse memory that is still being copied out."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.wait_for_unshard",
        (
            "self.comm_ctx.wait_all_gather_streams_on_event(all_gather_copy_out_event)",
            "planted_line_reached()",
        ),
    )
