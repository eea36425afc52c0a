"""Faults that break what rows of upstream's tests assert."""

import torch
import torch.distributed as dist
from planting import instead_of
from torch.distributed.fsdp import FSDPModule, _runtime_utils, register_fsdp_forward_method
from torch.distributed.fsdp import fully_sharded_data_parallel as wrapper
from torch.distributed.fsdp._exec_order_utils import _ExecOrderData
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_state
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_file
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, unsafe_setattr_param
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.utils import _pytree as pytree


@instead_of(FSDPModule, "set_requires_all_reduce")
def all_reduces_every_microbatch(right, self, value, *, recurse=True):
    """``set_requires_all_reduce`` does nothing: every microbatch is all-reduced, to the same
    sum.
    """


@instead_of(FSDPModule, "unshard")
def async_unshard_lost(right, self, async_op=False):
    """What ``unshard(async_op=True)`` gathers arrives as zeros."""
    handle = right(self, async_op)
    for group in self._get_fsdp_state()._fsdp_param_groups if async_op else ():
        result = group._all_gather_result
        if result.all_gather_work is not None:
            result.all_gather_work.wait()
        result.all_gather_output.zero_()
    return handle


@instead_of(_fsdp_collectives, "_get_gradient_divide_factors")
def divides_by_world_size(right, reduce_group, all_reduce_group, dtype, device, factor, force_sum):
    """Gradients are divided by the number of all ranks, not of those that they are summed over."""
    return right(reduce_group, all_reduce_group, dtype, device, float(dist.get_world_size()), True)


@instead_of(_ExecOrderData, "_check_order")
def fsdp1_checks_order_in_evaluation(right, self, handle, is_training):
    """FSDP1 takes forwards in eval mode for part of a training iteration."""
    right(self, handle, True)


@instead_of(_runtime_utils, "_finalize_params")
def fsdp1_moves_frozen_units(right, state):
    """A backward adds one to the shards of frozen units."""
    right(state)
    if state._handle and not state._handle.flat_param.requires_grad:
        state._handle.flat_param._local_shard.add_(1)


def fsdp1_second_call_lost(patch=setattr):
    """From the second call of a unit in one iteration on, its parameters get no gradient."""
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

    patch(wrapper, "_pre_forward", wrong)
    patch(_runtime_utils, "_finalize_params", finalize)


def gathers_before_the_event(patch=setattr):
    """A forward that has an event to wait for gathers what was there before the step."""
    root_pre_forward = FSDPState._root_pre_forward
    all_gather_inputs = _fsdp_collectives._get_param_all_gather_inputs
    early = False

    def enter(self, module, args, kwargs):
        nonlocal early
        if self._state_ctx.iter_forward_root is None:
            early = self._state_ctx.post_optim_event is not None
        return root_pre_forward(self, module, args, kwargs)

    def wrong(fsdp_params):
        now = [
            [tensor.clone() for tensor in tensors] for tensors in all_gather_inputs(fsdp_params)
        ]
        before = fsdp_params[0].sent if early else now
        fsdp_params[0].sent = now
        return before

    patch(FSDPState, "_root_pre_forward", enter)
    patch(_fsdp_collectives, "_get_param_all_gather_inputs", wrong)


@instead_of(_fsdp_collectives, "_get_param_all_gather_inputs")
def gathers_too_early(right, fsdp_params):
    """What is gathered was read before the all-gather had to wait: it is what the last one should
    have sent.
    """
    now = [[tensor.clone() for tensor in tensors] for tensors in right(fsdp_params)]
    before = getattr(fsdp_params[0], "sent", now)
    fsdp_params[0].sent = now
    return before


def inner_root_unsynchronised(patch=setattr):
    """Where a forward enters below the root, its backward leaves gradients as this rank computed
    them.
    """
    root_pre_forward, post_backward = FSDPState._root_pre_forward, FSDPParamGroup.post_backward

    def enter(self, module, args, kwargs):
        result = root_pre_forward(self, module, args, kwargs)
        if self._state_ctx.iter_forward_root is self:
            self._comm_ctx.below_root = not self._is_root
        return result

    def wrong(self, *unused):
        self.reduce_grads = not self.comm_ctx.below_root
        post_backward(self, *unused)

    patch(FSDPState, "_root_pre_forward", enter)
    patch(FSDPParamGroup, "post_backward", wrong)


@instead_of(FSDPState, "_root_pre_forward")
def inputs_elsewhere(right, self, module, args, kwargs):
    """The root moves its inputs to another device than its own."""
    args, kwargs = right(self, module, args, kwargs)
    return pytree.tree_map(lambda tensor: tensor.to("meta"), (args, kwargs))


@instead_of(_fsdp_state, "_to_kwargs")
def inputs_not_moved(right, args, kwargs, device, side_stream):
    """The root leaves its inputs on the device that they come from."""
    return ((args,), (kwargs,))


def method_not_unsharded(patch=setattr):
    """``register_fsdp_forward_method`` does nothing."""
    patch(register_fsdp_forward_method, "__code__", (lambda module, method_name: None).__code__)


@instead_of(FSDPState, "_root_post_backward_final_callback")
def microbatch_lost(right, self):
    """A backward that is not the last one loses the gradients that wait to be reduced."""
    right(self)
    for state in self._state_ctx.all_states if not self._state_ctx.is_last_backward else ():
        for group in state._fsdp_param_groups:
            for param in group.fsdp_params:
                param.unsharded_param.grad = None


@instead_of(FSDPState, "_root_pre_forward")
def nested_inputs_lost(right, self, module, args, kwargs):
    """The root hands tensors that come in a tuple on as zeros."""
    args, kwargs = right(self, module, args, kwargs)
    return tuple(
        tuple(map(torch.zeros_like, a)) if isinstance(a, tuple) else a for a in args
    ), kwargs


@instead_of(FSDPState, "_pre_forward")
def recomputes_with_zeros(right, self, module, args, kwargs):
    """A recomputation of a checkpointed module finds zeros in its parameters."""
    recomputes = self._training_state == TrainingState.PRE_BACKWARD
    result = right(self, module, args, kwargs)
    for group in self._fsdp_param_groups if recomputes else ():
        for param in group.fsdp_params:
            param.unsharded_param.data.zero_()
    return result


def reduces_in_the_first_dtype(patch=setattr):
    """After a cast gradients are still reduced in the dtype that parameters had when they were
    wrapped.
    """
    init, init_dtype_attrs = FSDPParam.__init__, FSDPParam.init_dtype_attrs

    def remember(self, param, *args, **kwargs):
        init(self, param, *args, **kwargs)
        self.first_dtype = param.dtype

    def wrong(self, mp_policy):
        init_dtype_attrs(self, mp_policy)
        self.reduce_dtype = self.first_dtype

    patch(FSDPParam, "__init__", remember)
    patch(FSDPParam, "init_dtype_attrs", wrong)


@instead_of(group_file, "foreach_reduce")
def reduces_twice(right, params, gradients, group, stream, reduce_scatter, *args, **kwargs):
    """Every reduce-scatter is preceded by another one of which nobody sees the result."""
    reduce_scatter(torch.zeros(1), torch.zeros(group.size()), group, dist.ReduceOp.SUM)
    return right(params, gradients, group, stream, reduce_scatter, *args, **kwargs)


@instead_of(group_file, "foreach_reduce")
def replicas_not_summed(right, *args, **kwargs):
    """Gradients are not summed over replicas."""
    all_reduce, dist.all_reduce = dist.all_reduce, lambda *args, **kwargs: None
    try:
        return right(*args, **kwargs)
    finally:
        dist.all_reduce = all_reduce


@instead_of(FSDPParamGroup, "pre_forward")
def second_call_lost(right, self, module, args, kwargs):
    """From the second call of a module in one forward on, its parameters get no gradient."""
    again = self._training_state == TrainingState.IDLE and self._post_forward_indices
    result = right(self, module, args, kwargs)
    for param in self.fsdp_params if again and torch.is_grad_enabled() else ():
        param._setattr_on_modules(torch.nn.Parameter(param.unsharded_param.detach()))
    return result


@instead_of(FSDPParam, "_setattr_on_modules")
def second_name_lost(right, self, param):
    """A shared parameter gets the gradient of the first of its names only."""
    right(self, param)
    info = self._module_info
    if param is not self.sharded_param:
        for module, name in zip(info.shared_modules, info.shared_param_names, strict=True):
            unsafe_setattr_param(module, name, torch.nn.Parameter(param.detach()))


@instead_of(FSDPParamGroup, "finalize_backward")
def short_shard_shifted(right, self):
    """The gradient of a shard with fewer rows than its padding has begins at another row."""
    right(self)
    for param in self.fsdp_params:
        gradient = param.sharded_param.grad
        if (
            gradient is not None
            and 0 < len(gradient._local_tensor) < param.padded_sharded_param_size[0]
        ):
            gradient._local_tensor.copy_(gradient._local_tensor.roll(1, 0))


def unfrozen_not_reduced(patch=setattr):
    """Parameters that are frozen in the first forward are never reduced."""
    lazy_init, post_backward = FSDPParamGroup.lazy_init, FSDPParamGroup.post_backward

    def remember(self):
        lazy_init(self)
        for param in self.fsdp_params:
            param.frozen_at_first = not param.sharded_param.requires_grad

    def wrong(self, *unused):
        for param in self.fsdp_params:
            if param.frozen_at_first and hasattr(param, "_unsharded_param"):
                param._unsharded_param.grad = None
        post_backward(self, *unused)

    patch(FSDPParamGroup, "lazy_init", remember)
    patch(FSDPParamGroup, "post_backward", wrong)


@instead_of(FSDPParamGroup, "reshard")
def unsharded_after_backward(right, self):
    """A group that stays unsharded after forward stays so after backward."""
    if self._training_state != TrainingState.POST_BACKWARD:
        right(self)
