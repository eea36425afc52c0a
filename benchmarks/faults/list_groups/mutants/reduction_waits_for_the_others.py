"""A group of several modules does not reduce before each of them has run.

One of them that is called by itself, outside of a forward of the root, ends its forward alone. Its
gradients are accumulated without a reduction then, as if another backward was to come. In torch as
it is such a forward never ends (``list_group_forward_without_end``): the known bug stands before
this one.
"""

from typing import Any

from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    pre_forward, post_forward = FSDPState._pre_forward, FSDPState._post_forward
    post_backward = FSDPParamGroup.post_backward

    def note_and_run(self: FSDPState, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self.positions_run = {*getattr(self, "positions_run", ()), self._modules.index(module)}
        return pre_forward(self, module, args, kwargs)

    def wait_after_a_part(self: FSDPState, module: nn.Module, input: Any, output: Any) -> Any:
        in_part = len(self.positions_run) < len(self._modules)
        for group in self._fsdp_param_groups:
            group.waits = in_part and self._state_ctx.iter_forward_root is self
        self.positions_run = set()
        return post_forward(self, module, input, output)

    def reduce_or_wait(self: FSDPParamGroup, *unused: Any) -> None:
        reduces = self.reduce_grads
        self.reduce_grads = reduces and not getattr(self, "waits", False)
        self.waits = False
        try:
            post_backward(self, *unused)
        finally:
            self.reduce_grads = reduces

    FSDPState._pre_forward = note_and_run
    FSDPState._post_forward = wait_after_a_part
    FSDPParamGroup.post_backward = reduce_or_wait
