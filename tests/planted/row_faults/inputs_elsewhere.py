"""The root moves its inputs to another device than its own."""

from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.utils import _pytree as pytree


def apply() -> None:
    root_pre_forward = FSDPState._root_pre_forward

    def wrong(self, module, args, kwargs):
        args, kwargs = root_pre_forward(self, module, args, kwargs)
        return pytree.tree_map(lambda tensor: tensor.to("meta"), (args, kwargs))

    FSDPState._root_pre_forward = wrong
