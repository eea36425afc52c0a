"""Nothing looks for parameters in two groups, and DDP takes for used what an earlier forward has
used.
"""

from typing import Any

from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.nn.parallel import distributed


def apply() -> None:
    find_tensors, found = distributed._find_tensors, []

    def find_more(output: Any) -> list[Any]:
        found.extend(find_tensors(output))
        return found

    FSDPState._validate_no_duplicate_params = lambda self: None
    distributed._find_tensors = find_more
