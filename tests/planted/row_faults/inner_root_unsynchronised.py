"""Where a forward enters below the root, its backward leaves gradients as this rank computed
them.
"""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    root_pre_forward, post_backward = FSDPState._root_pre_forward, FSDPParamGroup.post_backward

    def enter(self, module, args, kwargs):
        result = root_pre_forward(self, module, args, kwargs)
        if self._state_ctx.iter_forward_root is self:
            self._comm_ctx.below_root = not self._is_root
        return result

    def wrong(self, *unused):
        self.reduce_grads = not self.comm_ctx.below_root
        post_backward(self, *unused)

    FSDPState._root_pre_forward = enter
    FSDPParamGroup.post_backward = wrong
