"""From the second call of a unit in one iteration on, its parameters get no gradient."""

import torch
from torch.distributed.fsdp import _runtime_utils
from torch.distributed.fsdp import fully_sharded_data_parallel as wrapper


def apply() -> None:
    pre_forward, finalize_params = wrapper._pre_forward, _runtime_utils._finalize_params
    called = set()

    def wrong(state, handle, unshard, module, args, kwargs):
        result = pre_forward(state, handle, unshard, module, args, kwargs)
        if handle and torch.is_grad_enabled():
            for name, owner, _ in handle.flat_param._param_infos if handle in called else ():
                setattr(owner, name, getattr(owner, name).detach())
            called.add(handle)
        return result

    def finalize(state):
        called.clear()
        finalize_params(state)

    wrapper._pre_forward = wrong
    _runtime_utils._finalize_params = finalize
