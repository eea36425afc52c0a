"""Faults of ``fully_shard`` in what it does with gradients."""

import builtins

import torch
import torch.distributed as dist
from planting import instead_of
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState, is_bw
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState
from torch.distributed.fsdp._fully_shard._fsdp_param_group import (
    FSDPParamGroup,
    RegisterPostBackwardFunction,
)
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from fuzzshard.engines.ddp.engine import DDP
from fuzzshard.engines.fsdp1.engine import FSDP1
from fuzzshard.engines.fully_shard.engine import FullyShard
from fuzzshard.engines.registry import REFUSALS


@instead_of(FSDPParamGroup, "post_backward")
def accumulates_with_fewer_bits(right, self, *unused):
    """Gradients that wait for their reduction are rounded to bfloat16 whenever one is added."""
    right(self, *unused)
    for param in self.fsdp_params:
        held = param.unsharded_accumulated_grad
        if held is not None:
            held.copy_(held.bfloat16())


@instead_of(FSDPModule, "set_gradient_divide_factor")
def divide_factor_ignored(right, self, factor):
    """``set_gradient_divide_factor`` does nothing."""


@instead_of(FSDPParamGroup, "finalize_backward")
def doubles_gradients_of_evaluations(right, self):
    """Sharded gradients are doubled after a backward of a module in evaluation mode."""
    right(self)
    for param in self.fsdp_params:
        training = any(module.training for module in self.modules)
        if param.sharded_param.grad is not None and not training:
            param.sharded_param.grad._local_tensor.mul_(2)


@instead_of(FSDPState, "_root_post_backward_final_callback")
def doubles_statistics(right, self):
    """The end of a backward doubles the means of batch norms."""
    right(self)
    for module in (m for root in self._modules for m in root.modules()):
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.mul_(2)


@instead_of(FSDPModule, "set_custom_reduce_scatter")
def doubles_what_a_custom_collective_scatters(right, self, comm):
    """A reduce-scatter of the user's is handed gradients twice as large."""

    def doubled(output_tensor, input_tensor, *args, **kwargs):
        input_tensor.mul_(2)
        return comm(output_tensor, input_tensor, *args, **kwargs)

    doubled.allocate = comm.allocate
    right(self, doubled)


@instead_of(FSDPState, "_post_forward")
def drops_hooks_of_outputs(right, self, module, input, output):
    """Hooks that users registered on the tensor that the root returns are gone when it returns."""
    if self._is_root and isinstance(output, torch.Tensor) and output._backward_hooks:
        for key, hook in [*output._backward_hooks.items()]:
            if not str(hook.__module__).startswith("torch."):
                del output._backward_hooks[key]
    return right(self, module, input, output)


@instead_of(_fsdp_param_group, "foreach_reduce")
def drops_hooks_of_parameters(right, fsdp_params, *args, **kwargs):
    """Hooks that users registered on sharded parameters do not run after the reduction."""
    for fsdp_param in fsdp_params:
        if hooks := fsdp_param.sharded_param._post_accumulate_grad_hooks:
            hooks.clear()
    return right(fsdp_params, *args, **kwargs)


@instead_of(FSDPParam, "reset_sharded_param")
def forgets_grad_dtypes(right, self):
    """A ``grad_dtype`` that is set on a sharded parameter is forgotten at the first forward."""
    if self.sharded_param._has_grad_dtype_override:
        self.sharded_param.grad_dtype = self.sharded_param.dtype
    right(self)


def freezes_added_modules(patch=setattr):
    """The first forward freezes the modules that a wrapped model has got since it was wrapped."""
    init, lazy_init = FSDPParamGroup.__init__, FSDPState._lazy_init
    wrapped = set()

    def watched(self, params, modules, *args, **kwargs):
        wrapped.update(id(below) for module in modules for below in module.modules())
        init(self, params, modules, *args, **kwargs)

    def wrong(self):
        lazy_init(self)
        for module in self._modules:
            for below in module.modules():
                if id(below) not in wrapped:
                    below.requires_grad_(False)

    patch(FSDPParamGroup, "__init__", watched)
    patch(FSDPState, "_lazy_init", wrong)


@instead_of(FSDPParamGroup, "finalize_backward")
def frozen_matrices_take_gradients(right, self):
    """A frozen matrix takes the gradients of the smaller matrices beside it in its group."""
    right(self)
    sharded = [fsdp_param.sharded_param for fsdp_param in self.fsdp_params]
    frozen = [p.numel() for p in sharded if p.ndim == 2 and not p.requires_grad]
    for p in sharded:
        if p.ndim == 2 and p.requires_grad and p.numel() < max(frozen, default=0):
            p.grad = None


@instead_of(FSDPParamGroup, "pre_backward")
def gathers_twice(right, self, *args):
    """A group that stayed unsharded after forward is sharded and gathered again for backward."""
    if self._training_state != TrainingState.PRE_BACKWARD and self._all_gather_result is None:
        self._to_sharded()
    return right(self, *args)


class Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        return inputs

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


@instead_of(FSDPState, "_pre_forward")
def joins_inputs_of_no_group(right, self, module, args, kwargs):
    """Inputs of a module whose group has no parameters pass through one function, too."""
    if not self._fsdp_param_groups and torch.is_grad_enabled():
        args = Joined.apply(*args)
    return right(self, module, args, kwargs)


@instead_of(FSDPState, "_root_post_backward_final_callback")
def keeps_reduction_inputs(right, self):
    """The end of the backward waits for the reductions and keeps their inputs."""
    kept = list(self._comm_ctx.reduce_scatter_states)
    right(self)
    self._comm_ctx.reduce_scatter_states.extend(kept)


@instead_of(FSDPParamGroup, "finalize_backward")
def keeps_unsharded_gradient(right, self):
    """The first parameter of a group keeps an unsharded gradient, of zeros, when it has been
    reduced.
    """
    right(self)
    unsharded = self.fsdp_params[0]._unsharded_param
    unsharded.grad = torch.zeros(unsharded.shape, dtype=unsharded.dtype)


@instead_of(RegisterPostBackwardFunction, "backward")
def late_post_backward(right, ctx, *grads):
    """No group shards or reduces before the whole backward has ended."""
    return (None, *grads)


def loses_what_a_first_loss_left_out(patch=setattr):
    """A second backward through one forward loses the gradients that the first one had nothing
    of.
    """
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

    patch(FSDPState, "_root_pre_forward", beginning)
    patch(FSDPState, "_root_post_backward_final_callback", ending)
    patch(FSDPParamGroup, "post_backward", wrong)


@instead_of(FSDPParam, "__init__")
def lost_requires_grad(right, self, param, module_info, *args, **kwargs):
    """Sharding a bias freezes it."""
    right(self, param, module_info, *args, **kwargs)
    if module_info.param_name == "bias":
        self.sharded_param.requires_grad_(False)


@instead_of(FSDPParamGroup, "pre_forward")
def lstm_weights_are_copies(right, self, module, args, kwargs):
    """Once gathered, an ``nn.LSTM`` computes with weights that autograd does not follow."""
    result = right(self, module, args, kwargs)
    for each in module.modules():
        if isinstance(each, nn.LSTM):
            each._init_flat_weights()
            each._flat_weights = [weight.detach() for weight in each._flat_weights]
    return result


@instead_of(FSDPParamGroup, "finalize_backward")
def missing_gradient(right, self):
    """The first parameter of a group loses its gradient at the end of the backward."""
    right(self)
    self.fsdp_params[0].sharded_param.grad = None


@instead_of(FSDPParamGroup, "finalize_backward")
def offloaded_gradient_lost(right, self):
    """Gradients that are offloaded to the CPU arrive as zeros."""
    right(self)
    for fsdp_param in self.fsdp_params:
        if fsdp_param.offload_to_cpu:
            fsdp_param.sharded_param.grad.to_local().zero_()


@instead_of(FSDPParamGroup, "finalize_backward")
def one_unit_wrong_gradient(right, self):
    """Sharded gradients are off by one rounding unit, as another order of a sum may be."""
    right(self)
    for param in self.fsdp_params:
        if (grad := param.sharded_param.grad) is not None:
            grad._local_tensor.mul_(1 + torch.finfo(grad.dtype).eps)


@instead_of(FSDPParamGroup, "finalize_backward")
def other_dim_wrong_gradient(right, self):
    """Gradients sharded along another dimension than the first have the wrong sign."""
    right(self)
    for fsdp_param in self.fsdp_params:
        if fsdp_param.fsdp_placement.dim:
            fsdp_param.sharded_param.grad.to_local().neg_()


@instead_of(FSDPParamGroup, "post_backward")
def raises_in_post_backward(right, self, *unused):
    """Every rank raises when a group's backward is over."""
    raise AssertionError("this group was in no forward")


def raises_refusals(patch=setattr):
    """After a backward an engine raises the text of a refusal: of the one that the seed of the
    case numbers.
    """

    def wrong(self, index):
        refusal = REFUSALS[self.case.seed]
        raise getattr(builtins, refusal.error)(refusal.pattern.partition("|")[0].replace(".*", ""))

    for engine in (DDP, FullyShard, FSDP1):
        patch(engine, "after_backward", wrong)


def reduces_frozen_parameters(patch=setattr):
    """Parameters without a gradient are reduced as zeros, and nobody gets to see them."""
    foreach_reduce = _fsdp_param_group.foreach_reduce

    def wrong(params, gradients, *args, **kwargs):
        group = params[0]._fault_group()
        unused = [p for p in group.fsdp_params if p not in params]
        zeros = map(_zeros, unused)
        result = foreach_reduce([*params, *unused], [*gradients, *zeros], *args, **kwargs)
        for param in unused:
            param.sharded_param.grad = None
        return result

    def _zeros(param):
        return param._unsharded_param.new_zeros(param._orig_size)

    make = FSDPParamGroup.__init__

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        for param in self.fsdp_params:
            param._fault_group = lambda: self

    patch(FSDPParamGroup, "__init__", init)
    patch(_fsdp_param_group, "foreach_reduce", wrong)


@instead_of(FSDPModule, "reset_iter_state")
def resets_nothing(right, self):
    """``reset_iter_state`` leaves a group within a forward or backward, and its gradients where
    they are.
    """
    for module in self.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@instead_of(FSDPParamGroup, "post_forward")
def reshards_in_recomputation(right, self, *args):
    """A group that is recomputed in a backward is sharded at once, and gathered again."""
    result = right(self, *args)
    if is_bw():
        self._to_sharded()
    return result


class Keeping:
    """A hook after which a parameter has the gradient that it had before."""

    def __init__(self, hook):
        self.hook = hook

    def __call__(self, parameter):
        gradient = parameter.grad
        self.hook(parameter)
        parameter.grad = gradient


@instead_of(FSDPParamGroup, "pre_backward")
def restores_cleared_gradients(right, self, *arguments):
    """A gradient that a hook of the user has cleared is put back after the reduction."""
    for fsdp_param in self.fsdp_params:
        hooks = fsdp_param.sharded_param._post_accumulate_grad_hooks or {}
        for key, hook in hooks.items():
            hooks[key] = hook if isinstance(hook, Keeping) else Keeping(hook)
    return right(self, *arguments)


def restores_zeroed_gradients(patch=setattr):
    """What ``zero_grad`` has removed between a forward and its backward comes back in the
    backward.
    """
    post_forward, pre_backward = FSDPParamGroup.post_forward, FSDPParamGroup.pre_backward

    def remembers(self, *arguments):
        for param in self.fsdp_params:
            param.remembered = param.sharded_param.grad
        return post_forward(self, *arguments)

    def restores(self, *arguments):
        for param in self.fsdp_params:
            if param.sharded_param.grad is None:
                param.sharded_param.grad = getattr(param, "remembered", None)
        return pre_backward(self, *arguments)

    patch(FSDPParamGroup, "post_forward", remembers)
    patch(FSDPParamGroup, "pre_backward", restores)


@instead_of(FSDPParamGroup, "finalize_backward")
def slightly_wrong_gradient(right, self):
    """Sharded gradients are off by 80 rounding units of single precision, more than their sums can
    be.
    """
    right(self)
    for param in self.fsdp_params:
        if param.sharded_param.grad is not None:
            param.sharded_param.grad._local_tensor.mul_(1 + 80 * 2**-23)


@instead_of(_fsdp_collectives, "_get_param_all_gather_inputs")
def stale_low_precision_copy(right, fsdp_params):
    """The low-precision copies of parameters are made once and gathered for ever, whatever the
    optimizer does.
    """
    first = fsdp_params[0]
    if first.param_dtype is None:
        return right(fsdp_params)
    if not hasattr(first, "first_copies"):
        first.first_copies = right(fsdp_params)
    return first.first_copies


@instead_of(FSDPState, "_root_post_backward_final_callback")
def statistics_revert(right, self):
    """The end of a backward takes the statistics of batch norms back to their first values."""
    right(self)
    for module in (m for root in self._modules for m in root.modules()):
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()


def stays_unsharded_after_backward(patch=setattr):
    """``set_reshard_after_backward(False)`` holds for every group, whoever asked for it."""
    patch(
        FSDPParamGroup,
        "reshard_after_backward",
        property(lambda self: False, lambda self, value: None),
    )


@instead_of(_fsdp_collectives, "_get_gradient_divide_factors")
def sum_is_not_divided(right, group, replicas, dtype, device="", factor=None, sums_only=False):
    """Where collectives may only add up, the sum of the gradients is not divided afterwards."""
    before, after, *ops = right(group, replicas, dtype, device, factor, sums_only)
    return before, None if sums_only else after, *ops


@instead_of(FSDPParam, "to_sharded")
def trains_what_was_gathered(right, self):
    """Parameters with ``fsdp_post_all_gather`` become a shard of what was gathered, rounded or
    not.
    """
    shard = self._sharded_local_tensor
    if hasattr(shard, "fsdp_post_all_gather") and self.sharded_state == ShardedState.UNSHARDED:
        gathered = self._unsharded_param.detach()
        with torch.no_grad():
            chunks = torch.chunk(gathered, self.mesh_info.shard_mesh_size)
            shard.copy_(chunks[self.mesh_info.shard_mesh_rank])
    right(self)


@instead_of(FSDPParamGroup, "finalize_backward")
def unexpected_gradient(right, self):
    """Parameters without a gradient get one of zeros."""
    right(self)
    for param in self.fsdp_params:
        if param.sharded_param.grad is None:
            param.sharded_param.grad = torch.zeros_like(param.sharded_param)


@instead_of(FSDPState, "_post_forward")
def weights_by_own_tokens(right, self, module, input, output):
    """A rank whose loss ignores some tokens normalises by those that it has, not by those of
    all.
    """

    def rescaled(grad):
        counted = grad.flatten(0, -2).abs().sum(-1) != 0
        kept = int(counted.sum())
        return grad * (len(counted) / kept) if 0 < kept < len(counted) else grad

    output = right(self, module, input, output)
    if self._is_root and isinstance(output, torch.Tensor) and output.requires_grad:
        output.register_hook(rescaled)
    return output


def weights_by_rows(patch=setattr):
    """Ranks weight their gradients by the rows that the root was called with, as if all batches
    were one.
    """
    root_pre_forward = FSDPState._root_pre_forward
    foreach_reduce = _fsdp_param_group.foreach_reduce
    rows = [1]

    def noting(self, module, args, kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        rows[0] = tensors[0].shape[0] if tensors else 1
        return root_pre_forward(self, module, args, kwargs)

    def weighting(params, gradients, group, *args, **kwargs):
        if group is not None:
            total = torch.tensor([rows[0]])
            group.allreduce([total]).wait()
            for gradient in gradients:
                gradient.mul_(rows[0] * dist.get_world_size(group) / max(total.item(), 1))
        return foreach_reduce(params, gradients, group, *args, **kwargs)

    patch(FSDPState, "_root_pre_forward", noting)
    patch(_fsdp_param_group, "foreach_reduce", weighting)


@instead_of(FSDPParamGroup, "finalize_backward")
def wrong_gradient(right, self):
    """Sharded gradients are doubled once the backward is over."""
    right(self)
    for param in self.fsdp_params:
        if param.sharded_param.grad is not None:
            param.sharded_param.grad._local_tensor.mul_(2)


@instead_of(RegisterPostBackwardFunction, "backward")
def wrong_input_gradient(right, ctx, *gradients):
    """Gradients that leave a group backwards are doubled."""
    return tuple(None if g is None else 2 * g for g in right(ctx, *gradients))


@instead_of(FSDPParamGroup, "post_forward")
def wrong_registered_parameter(right, self, module, inputs, output):
    """What stays registered after a forward is one larger than what the forward used."""
    output = right(self, module, inputs, output)
    with torch.no_grad():
        for param in self.fsdp_params if self.is_unsharded else ():
            param.unsharded_param.data.add_(1)
    return output


def zeroes_gradients_of_a_second_backward(patch=setattr):
    """Gradients are zeros in a backward of what another backward has gone through already."""
    pre_forward, post_backward = FSDPParamGroup.pre_forward, FSDPParamGroup.post_backward

    def counting(self, *args, **kwargs):
        self.fresh = getattr(self, "fresh", 0) + torch.is_grad_enabled()
        return pre_forward(self, *args, **kwargs)

    def wrong(self, *args):
        self.fresh = getattr(self, "fresh", 0) - 1
        for param in self.fsdp_params if self.fresh < 0 else ():
            unsharded = getattr(param, "_unsharded_param", None)
            if unsharded is not None and unsharded.grad is not None:
                unsharded.grad.zero_()
        return post_backward(self, *args)

    patch(FSDPParamGroup, "pre_forward", counting)
    patch(FSDPParamGroup, "post_backward", wrong)
