"""FSDP1 loses the gradients of original parameters at the end of the backward."""

from torch.distributed.fsdp import _runtime_utils


def apply() -> None:
    finalize_params = _runtime_utils._finalize_params

    def wrong(state):
        finalize_params(state)
        if state._handle:
            for parameter in state._handle.flat_param._params:
                parameter.grad = None

    _runtime_utils._finalize_params = wrong
