"""FSDP1 loses the gradient of every flat parameter at the end of the backward."""

from torch.distributed.fsdp import _runtime_utils


def apply() -> None:
    finalize_params = _runtime_utils._finalize_params

    def wrong(state):
        finalize_params(state)
        if state._handle:
            state._handle.flat_param.grad = None

    _runtime_utils._finalize_params = wrong
