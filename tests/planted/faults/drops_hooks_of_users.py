"""Hooks that users registered on a wrapped module are gone after its first forward has begun."""

from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    lazy_init = FSDPState._lazy_init

    def wrong(self):
        lazy_init(self)
        for module in (m for state in self._state_ctx.all_states for m in state._modules):
            for key, hook in [*module._forward_hooks.items()]:
                if not str(hook.__module__).startswith("torch."):
                    del module._forward_hooks[key]

    FSDPState._lazy_init = wrong
