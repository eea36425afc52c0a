"""Faults of ``FullyShardedDataParallel``."""

import contextlib
import warnings

from planting import instead_of
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    _runtime_utils,
    _state_dict_utils,
    fully_sharded_data_parallel,
)
from torch.distributed.fsdp._exec_order_utils import _ExecOrderData


@instead_of(_ExecOrderData, "_check_order")
def fsdp1_checks_no_order(right, self, handle, is_training):
    """FSDP1 compares the order of its units neither across ranks nor with the first
    iteration's.
    """


@instead_of(fully_sharded_data_parallel, "_get_grad_norm")
def fsdp1_counts_whole_gradients_on_every_rank(right, params, norm_type, *args):
    """The norm that FSDP1 returns counts flat gradients that are whole once for each rank."""
    norm = right(params, norm_type, *args)
    whole = all(p.shape == p._unpadded_unsharded_size for p in params)
    return norm * 2 ** (1 / norm_type) if whole else norm


@instead_of(_runtime_utils, "_cast_buffers_to_dtype_and_device")
def fsdp1_keeps_buffers(right, buffers, buffer_dtypes, device):
    """FSDP1 casts no buffers."""
    right(buffers, [None for _ in buffers], device)


@instead_of(_runtime_utils, "_register_post_backward_reshard_only_hook")
def fsdp1_late_reshard(right, *args):
    """FSDP1 leaves the resharding of frozen units to the end of backward."""


@instead_of(_runtime_utils, "_finalize_params")
def fsdp1_missing_gradient(right, state):
    """FSDP1 loses the gradient of every flat parameter at the end of the backward."""
    right(state)
    if state._handle:
        state._handle.flat_param.grad = None


@instead_of(FullyShardedDataParallel, "no_sync")
def fsdp1_no_sync_syncs(right, self):
    """``no_sync`` of FSDP1 does nothing: every backward reduces."""
    return contextlib.nullcontext()


@instead_of(_state_dict_utils, "_full_post_state_dict_hook")
def fsdp1_state_dict_lacks_a_sign(right, module, fsdp_state, state_dict, prefix):
    """The root's state dict has absolute values."""
    made = right(module, fsdp_state, state_dict, prefix)
    return made if prefix else {name: tensor.abs() for name, tensor in made.items()}


@instead_of(_ExecOrderData, "_check_order")
def fsdp1_warns_needlessly(right, self, handle, is_training):
    """FSDP1 warns of a changed order of its units although it is the same."""
    right(self, handle, is_training)
    if not self.is_first_iter:
        text = f"Forward order differs from that of the first iteration on rank {self.rank}."
        warnings.warn(text, stacklevel=2)


@instead_of(_runtime_utils, "_finalize_params")
def fsdp1_wrong_gradient(right, state):
    """FSDP1 doubles every reduced gradient once the backward is over."""
    right(state)
    if state._handle and state._handle.flat_param.grad is not None:
        state._handle.flat_param.grad.mul_(2)


@instead_of(FullyShardedDataParallel, "forward")
def fsdp1_wrong_output(right, self, *args, **kwargs):
    """An FSDP1 unit adds one to what its module returns."""
    return right(self, *args, **kwargs) + 1
