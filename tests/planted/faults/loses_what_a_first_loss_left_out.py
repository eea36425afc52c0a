"""Gradients are zeros that come first in a later backward than the first one after a forward."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_forward, post_backward = FSDPParamGroup.pre_forward, FSDPParamGroup.post_backward
    finalize_backward = FSDPParamGroup.finalize_backward

    def beginning(self, *args, **kwargs):
        self.had_gradients = self.was_passed = False
        return pre_forward(self, *args, **kwargs)

    def wrong(self, *args):
        leaves = [getattr(param, "_unsharded_param", None) for param in self.fsdp_params]
        gradients = [p.grad for p in leaves if p is not None and p.grad is not None]
        late = getattr(self, "was_passed", False) and not self.had_gradients
        for gradient in gradients if late else ():
            gradient.zero_()
        self.had_gradients = bool(gradients) or getattr(self, "had_gradients", False)
        return post_backward(self, *args)

    def passing(self, *args):
        self.was_passed = True
        return finalize_backward(self, *args)

    FSDPParamGroup.pre_forward, FSDPParamGroup.post_backward = beginning, wrong
    FSDPParamGroup.finalize_backward = passing
