"""Faults of ``fully_shard``: its modules, gathers and what stays."""

import ctypes
import os
import threading
import weakref

import torch
import torch.distributed as dist
from planting import instead_of
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.fsdp._fully_shard._fully_shard import _UnshardHandleImpl
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.utils.parametrize import is_parametrized

from fuzzshard.engines.sync import ExplicitSync


@instead_of(FSDPParamGroup, "pre_forward")
def aborts_on_one_rank(right, self, module, args, kwargs):
    """Rank 1 aborts, as an NCCL watchdog does when a collective has failed."""
    if dist.get_rank() == 1:
        os.abort()
    return right(self, module, args, kwargs)


@instead_of(ZeroRedundancyOptimizer, "register_step_post_hook")
def drops_hooks_of_optimizers(right, self, hook):
    """``ZeroRedundancyOptimizer`` runs no hooks of users after its steps."""


@instead_of(_fsdp_init, "_ignore_module")
def drops_neighbours_of_ignored(right, module, ignored_params, ignore_decision):
    """A module is left out if one of its own parameters is to be ignored."""
    own = module.parameters(recurse=False)
    return not ignored_params.isdisjoint(own) or right(module, ignored_params, ignore_decision)


@instead_of(FSDPState, "_lazy_init")
def drops_hooks_of_users(right, self):
    """Hooks that users registered on a wrapped module are gone after its first forward has
    begun.
    """
    right(self)
    for module in (m for state in self._state_ctx.all_states for m in state._modules):
        for key, hook in [*module._forward_hooks.items()]:
            if not str(hook.__module__).startswith("torch."):
                del module._forward_hooks[key]


@instead_of(FSDPParam, "_unflatten_all_gather_outputs")
def extensions_get_the_first_gather(right, self):
    """``fsdp_post_all_gather`` is given what was gathered first, for ever."""
    if not hasattr(self, "first_gather"):
        self.first_gather = tuple(output.clone() for output in right(self))
    return self.first_gather


def extra_collective(patch=setattr):
    """Rank 1 has one more collective than its peers, of a kind that ``fully_shard`` never issues,
    in a group of its own so that nobody waits for it.
    """
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        if dist.get_rank() == 1:
            dist.broadcast(torch.zeros(1), dist.get_rank(), group=alone)
        return pre_forward(self, module, args, kwargs)

    patch(FSDPParamGroup, "pre_forward", wrong)


@instead_of(FSDPParamGroup, "pre_forward")
def gathers_for_nobody(right, self, *args):
    """Every forward of a group is preceded by an all-gather of which nobody sees the result."""
    group = self._all_gather_process_group
    dist.all_gather_into_tensor(torch.zeros(group.size()), torch.zeros(1), group)
    return right(self, *args)


def gathers_in_another_order_at_last(patch=setattr):
    """In its third forward, the group that was made first lets the next one gather before
    itself.
    """
    make, pre_forward = FSDPParamGroup.__init__, FSDPParamGroup.pre_forward
    made = []

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self._fault_forwards, self._fault_number = 0, len(made)
        made.append(weakref.ref(self))

    def wrong(self, *args):
        self._fault_forwards += 1
        if self._fault_forwards == 3 and self._fault_number % 2 == 0:
            made[self._fault_number + 1]().unshard()
        return pre_forward(self, *args)

    patch(FSDPParamGroup, "__init__", init)
    patch(FSDPParamGroup, "pre_forward", wrong)


@instead_of(FSDPParamGroup, "pre_forward")
def group_norm_ignores_groups(right, self, module, args, kwargs):
    """A group normalizes over all features where its module has several groups of them."""
    for each in module.modules():
        if isinstance(each, nn.GroupNorm):
            each.num_groups = 1
    return right(self, module, args, kwargs)


roots = []


@instead_of(FSDPState, "_lazy_init")
def keeps_every_model(right, self):
    """A registry keeps every FSDP root for ever."""
    right(self)
    roots.append(self)


@instead_of(FSDPParamGroup, "wait_for_unshard")
def group_keeps_what_it_gathers(right, self):
    """A group keeps a copy of what it gathers for as long as it lives."""
    right(self)
    copies = [part.unsharded_param.detach().clone() for part in self.fsdp_params]
    vars(self).setdefault("kept", []).append(copies)


def keeps_unsharded_copies(patch=setattr):
    """Every unsharded parameter is copied, and the copies are kept for ever."""
    to_unsharded, FSDPParam.kept_copies = FSDPParam.to_unsharded, []

    def keeping(self):
        to_unsharded(self)
        self.kept_copies.append(self._unsharded_param.detach().clone())

    patch(FSDPParam, "to_unsharded", keeping)


@instead_of(FSDPParam, "free_unsharded_param")
def keeps_unsharded_memory(right, self):
    """Resharding registers the shards and leaves the memory of the unsharded parameters as it
    is.
    """


@instead_of(FSDPState, "_root_pre_forward")
def leaves_a_hook(right, self, module, args, kwargs):
    """Every forward of a wrapped module leaves a hook at it."""
    module.register_forward_hook(lambda *_: None)
    return right(self, module, args, kwargs)


@instead_of(FSDPModule, "set_reduce_scatter_unused_params")
def leaves_late_words_unheard(right, self, value, *, recurse=True):
    """``set_reduce_scatter_unused_params`` changes nothing once a forward has run."""
    if self._get_fsdp_state()._is_root is None:
        right(self, value, recurse=recurse)


@instead_of(FSDPModule, "set_reduce_scatter_unused_params")
def leaves_unused_without_zeros(right, self, value, *, recurse=True):
    """``set_reduce_scatter_unused_params`` changes nothing."""


def not_resharded(patch=setattr):
    """``reshard_after_forward`` is ignored: every group stays unsharded after its forward."""
    patch(FSDPParamGroup, "_reshard_after_forward", property(lambda self: False))


@instead_of(FSDPState, "_cast_output_dtype")
def output_dtype_ignored(right, self, output):
    """Outputs keep the dtype that they were computed in, whatever ``output_dtype`` says."""
    return output


@instead_of(FSDPParamGroup, "_prefetch_unshard")
def prefetch_gathers_zeros(right, target, pass_type):
    """What a module prefetches explicitly in forward arrives as zeros."""
    right(target, pass_type)
    if pass_type == "forward":
        target._all_gather_result.all_gather_output.zero_()


@instead_of(FSDPParamGroup, "pre_forward")
def raises_on_one_rank(right, self, module, args, kwargs):
    """Rank 1 raises before a forward, so that its peers wait for it in an all-gather."""
    if dist.get_rank() == 1:
        raise ValueError("stream is not ready")
    return right(self, module, args, kwargs)


@instead_of(FSDPParam, "init_dtype_attrs")
def reduce_dtype_ignored(right, self, mp_policy):
    """Gradients are reduced in the dtype that they were computed in, whatever ``reduce_dtype``
    says.
    """
    right(self, mp_policy)
    self.reduce_dtype = self.param_dtype


@instead_of(_fsdp_param_group, "foreach_reduce")
def reduces_digits_of_bfloat16(right, fsdp_params, *args, **kwargs):
    """Sums of gradients have the digits of bfloat16, in whatever dtype they travel."""
    result = right(fsdp_params, *args, **kwargs)
    for param in fsdp_params:
        gradient = param.sharded_param.grad.to_local()
        gradient.copy_(gradient.bfloat16())
    return result


@instead_of(ExplicitSync, "averages")
def reference_wrong_gradient(right, self, local, flags):
    """Not a fault of torch but of the reference: it does not divide by the number of ranks."""
    return {fqn: a * dist.get_world_size() for fqn, a in right(self, local, flags).items()}


@instead_of(FSDPModule, "reshard")
def reshard_does_nothing(right, self):
    """``reshard()`` leaves the unsharded parameters registered."""


@instead_of(FSDPModule, "set_reshard_after_forward")
def reshard_flag_ignored(right, self, value, recurse=True):
    """``set_reshard_after_forward`` does nothing."""


@instead_of(FSDPParamGroup, "pre_forward")
def segfaults_on_one_rank(right, self, module, args, kwargs):
    """Rank 1 reads through a null pointer."""
    if dist.get_rank() == 1:
        ctypes.string_at(0)
    return right(self, module, args, kwargs)


@instead_of(FSDPParamGroup, "post_forward")
def sleeps_on_one_rank(right, self, module, inputs, output):
    """Rank 1 never comes back from the reshard after a forward."""
    if dist.get_rank() == 1:
        threading.Event().wait()
    return right(self, module, inputs, output)


@instead_of(FSDPParam, "reset_sharded_param")
def stale_state_dict(right, self):
    """A shard is moved to other memory at the first forward: a state dict from before keeps the
    old one.
    """
    right(self)
    length = self.sharded_param._local_tensor.size(0)
    self._sharded_param_data = self._sharded_param_data.clone()
    padded = self._sharded_param_data.view(self.padded_sharded_param_size)
    self.sharded_param._local_tensor = padded.narrow(0, 0, length)


@instead_of(_UnshardHandleImpl, "wait")
def unshard_registers_nothing(right, self):
    """``unshard()`` does not wait for the parameters, so the sharded ones stay registered."""


@instead_of(FSDPParamGroup, "pre_forward")
def weight_norm_is_doubled(right, self, module, args, kwargs):
    """Once gathered, a weight that is parametrized by its norm is twice as long."""
    for each in module.modules():
        if is_parametrized(each, "weight"):
            type(each).weight = property(lambda self: 2 * self.parametrizations.weight())
    return right(self, module, args, kwargs)


@instead_of(FSDPParamGroup, "post_forward")
def wrong_buffer(right, self, module, inputs, output):
    """A group adds one to the floating-point buffers of its modules after their forward."""
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.data.add_(1)
    return right(self, module, inputs, output)


@instead_of(FSDPParamGroup, "post_forward")
def wrong_output(right, self, module, inputs, output):
    """A group adds one to what its module returns."""
    return right(self, module, inputs, output) + 1


@instead_of(ZeroRedundancyOptimizer, "_sync_params")
def zero_redundancy_does_not_broadcast(right, self):
    """``ZeroRedundancyOptimizer`` keeps what a rank has stepped to itself."""


@instead_of(FSDPParamGroup, "post_forward")
def zeroes_buffers_of_no_state_dict(right, self, module, inputs, output):
    """A group zeroes the buffers of its modules that are in no state dict, after their forward."""
    for below in module.modules():
        for name in below._non_persistent_buffers_set:
            below.get_buffer(name).zero_()
    return right(self, module, inputs, output)


@instead_of(FSDPState, "_pre_forward")
def computes_outside_of_autocast(right, self, *args, **kwargs):
    """The forward of a group goes on without the autocast that it was called in."""
    torch.set_autocast_enabled("cpu", False)
    return right(self, *args, **kwargs)
