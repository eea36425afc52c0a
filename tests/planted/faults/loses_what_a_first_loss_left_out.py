"""A second backward through one forward loses the gradients that the first one had nothing of."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    root_pre_forward = FSDPState._root_pre_forward
    final_callback = FSDPState._root_post_backward_final_callback
    post_backward = FSDPParamGroup.post_backward

    def beginning(self, *args, **kwargs):
        outer = self._state_ctx.iter_forward_root
        result = root_pre_forward(self, *args, **kwargs)
        begins = outer is None and torch.is_grad_enabled()
        self._comm_ctx.waiting = getattr(self._comm_ctx, "waiting", 0) + begins
        return result

    def ending(self, *args):
        final_callback(self, *args)
        self._comm_ctx.waiting -= 1  # the forwards that had no backward yet

    def wrong(self, *args):
        leaves = [getattr(param, "_unsharded_param", None) for param in self.fsdp_params]
        gradients = [p.grad for p in leaves if p is not None and p.grad is not None]
        again = self.comm_ctx.waiting <= 0 and not getattr(self, "had_gradients", False)
        for gradient in gradients if again else ():
            gradient.zero_()
        self.had_gradients = bool(gradients)
        return post_backward(self, *args)

    FSDPState._root_pre_forward = beginning
    FSDPState._root_post_backward_final_callback = ending
    FSDPParamGroup.post_backward = wrong
