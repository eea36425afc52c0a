"""FSDP1 doubles every reduced gradient once the backward is over."""

from torch.distributed.fsdp import _runtime_utils


def apply() -> None:
    finalize_params = _runtime_utils._finalize_params

    def wrong(state):
        finalize_params(state)
        if state._handle and state._handle.flat_param.grad is not None:
            state._handle.flat_param.grad.mul_(2)

    _runtime_utils._finalize_params = wrong
