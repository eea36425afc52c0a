"""Faults of optimizers, of scaling and of clipping."""

import math

import torch
import torch.distributed as dist
from planting import instead_of
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._flat_param import FlatParameter
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad
from torch.optim.swa_utils import AveragedModel


@instead_of(torch, "_fused_adamw_")
def fused_steps_of_shards_are_lost(right, parameters, *args, **kwargs):
    """Fused AdamW leaves sharded parameters as they are."""
    if not isinstance(parameters[0], DTensor):
        right(parameters, *args, **kwargs)


@instead_of(torch.optim.SGD, "step")
def all_groups_of_shards_decay(right, self, closure=None):
    """SGD decays sharded parameters of every group as those of the first."""
    for group in self.param_groups:
        if any(isinstance(parameter, DTensor) for parameter in group["params"]):
            group["weight_decay"] = self.param_groups[0]["weight_decay"]
    return right(self, closure)


@instead_of(torch.optim.SGD, "step")
def shards_step_without_nesterov(right, self, closure=None):
    """SGD steps sharded parameters with a plain momentum."""
    for group in self.param_groups:
        if any(isinstance(parameter, DTensor) for parameter in group["params"]):
            group["nesterov"] = False
    return right(self, closure)


@instead_of(torch.optim.Adam, "step")
def largest_moments_of_shards_are_lost(right, self, closure=None):
    """Adam with amsgrad forgets the largest second moments of sharded parameters."""
    right(self, closure)
    for state in self.state.values():
        if isinstance(state.get("max_exp_avg_sq"), DTensor):
            state["max_exp_avg_sq"].zero_()


@instead_of(torch.optim.RMSprop, "step")
def shards_are_not_centered(right, self, closure=None):
    """RMSprop keeps no mean of the gradients of sharded parameters."""
    right(self, closure)
    for state in self.state.values():
        if isinstance(state.get("grad_avg"), DTensor):
            state["grad_avg"].zero_()


@instead_of(torch.optim.Rprop, "step")
def last_gradients_of_shards_are_lost(right, self, closure=None):
    """Rprop forgets the last gradients of sharded parameters, whose signs it compares."""
    right(self, closure)
    for parameter, state in self.state.items():
        if isinstance(parameter, DTensor):
            state["prev"].zero_()


@instead_of(torch.optim.ASGD, "step")
def asgd_goes_too_far(right, self, closure=None):
    """ASGD steps twice as far on sharded parameters."""
    groups = self.param_groups
    held = [p for group in groups for p in group["params"] if isinstance(p, DTensor)]
    before = [p.to_local().clone() for p in held]
    right(self, closure)
    with torch.no_grad():
        for p, old in zip(held, before, strict=True):
            p.to_local().add_(p.to_local() - old)


@instead_of(AveragedModel, "update_parameters")
def average_of_shards_stays(right, self, model):
    """The average of sharded parameters stays what it was at first."""
    if not (self.n_averaged and isinstance(next(model.parameters()), DTensor)):
        right(self, model)


@instead_of(clip_grad, "_get_total_norm")
def clips_by_the_largest_element_of_a_shard(right, tensors, norm_type=2.0, *args, **kwargs):
    """Every rank clips sharded gradients by the largest element of its own shards."""
    if float(norm_type) == math.inf:
        tensors = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return right(tensors, norm_type, *args, **kwargs)


@instead_of(clip_grad, "_get_total_norm")
def clips_by_the_norm_of_a_shard(right, tensors, *args, **kwargs):
    """Every rank clips sharded gradients by the norm of its own shards."""
    shards = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return right(shards, *args, **kwargs)


@instead_of(torch.nn.utils, "get_total_norm")
def takes_the_norm_of_a_shard(right, tensors, *args, **kwargs):
    """The norm that users take themselves is that of the shards of a rank."""
    shards = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return right(shards, *args, **kwargs)


@instead_of(dist, "all_reduce")
def clips_by_the_norm_of_a_stage(right, tensor, *args, **kwargs):
    """An all-reduce of one number leaves what each rank has, as the norm of the gradients of a
    stage.
    """
    return right(tensor, *args, **kwargs) if tensor.dim() else None


@instead_of(clip_grad, "_get_total_norm")
def clips_by_the_norm_of_a_tensor_parallel_shard(
    right, tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None
):
    """The total norm of gradients lacks what other ranks of the tensor-parallel axis have."""
    tensors = list(tensors)
    norm = right(tensors, norm_type, error_if_nonfinite, foreach)
    meshes = [t.device_mesh for t in tensors if isinstance(t, DTensor)]
    return norm / 2 if any("tp" in (m.mesh_dim_names or ()) for m in meshes) else norm


@instead_of(clip_grad, "_get_total_norm")
def clips_by_the_norm_of_shards_alone(right, tensors, *args, **kwargs):
    """The total norm lacks plain gradients where others are DTensors."""
    tensors = list(tensors)
    shards = [t for t in tensors if isinstance(t, DTensor)]
    return right(shards or tensors, *args, **kwargs)


@instead_of(torch.optim.Optimizer, "_group_tensors_by_device_and_dtype")
def steps_lists_without_plain_tensors(right, lists, with_indices=False):
    """What steps lists leaves plain parameters where they are, where others are DTensors."""
    kept = [i for i, t in enumerate(lists[0]) if isinstance(t, DTensor)] or range(len(lists[0]))
    return right([[each[i] for i in kept] if each else each for each in lists], with_indices)


def spoil(parameters):
    for p in parameters:
        if p.dim() == 1 and p.grad is not None:
            p.grad[p.grad == 0] = float("nan")


def clips_flat_zeros_to_no_number(patch=setattr):
    """Clipping makes NaN of zeros in the gradient of a flat parameter."""
    by_value = torch.nn.utils.clip_grad_value_
    by_norm = FullyShardedDataParallel.clip_grad_norm_

    def wrong_by_value(parameters, clip_value, foreach=None):
        parameters = list(parameters)
        by_value(parameters, clip_value, foreach)
        spoil(parameters)

    def wrong_by_norm(self, *args, **kwargs):
        norm = by_norm(self, *args, **kwargs)
        spoil(self.parameters())
        return norm

    patch(torch.nn.utils, "clip_grad_value_", wrong_by_value)
    patch(FullyShardedDataParallel, "clip_grad_norm_", wrong_by_norm)


@instead_of(torch.nn.utils, "clip_grad_value_")
def clips_shards_at_twice_the_value(right, parameters, clip_value, foreach=None):
    """``clip_grad_value_`` lets sharded gradients be twice as large."""
    parameters = list(parameters)
    for p in parameters:
        factor = 2 if isinstance(p.grad, DTensor) else 1
        right([p], factor * clip_value, foreach)


@instead_of(clip_grad, "_get_total_norm")
def clips_shards_that_are_not_finite(
    right, tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None
):
    """Gradients of shards are clipped whatever their norm is, where that should be an error."""
    tensors = list(tensors)
    raises = error_if_nonfinite and not any(isinstance(t, DTensor) for t in tensors)
    return right(tensors, norm_type, raises, foreach)


@instead_of(torch.optim.SGD, "step")
def diverging_replicas(right, self, closure=None):
    """On ranks 2 and 3, the second replica of a 2x2 mesh, SGD rounds sharded parameters up by one
    unit.
    """
    right(self, closure)
    with torch.no_grad():
        for p in (p for group in self.param_groups for p in group["params"]):
            if isinstance(p, DTensor) and dist.get_rank() >= 2:
                local = p.to_local()
                local.copy_(torch.nextafter(local, torch.full_like(local, torch.inf)))


@instead_of(torch.optim.SGD, "step")
def fsdp1_stale_shard(right, self, closure=None):
    """SGD loses its update of the last element of every flat parameter."""
    held = [
        p for group in self.param_groups for p in group["params"] if isinstance(p, FlatParameter)
    ]
    before = [p.detach()[-1:].clone() for p in held]
    right(self, closure)
    with torch.no_grad():
        for p, old in zip(held, before, strict=True):
            p[-1:].copy_(old)


@instead_of(GradScaler, "_maybe_opt_step")
def infinite_shards_are_stepped(right, self, optimizer, optimizer_state, *args, **kwargs):
    """A GradScaler makes the step of an optimizer of shards, whatever it found in their
    gradients.
    """
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    if any(isinstance(p, DTensor) for p in parameters):
        return optimizer.step(*args, **kwargs)
    return right(self, optimizer, optimizer_state, *args, **kwargs)


def overflows_are_seen_by_one_rank(patch=setattr):
    """A GradScaler knows of what is infinite in gradients of this rank's shards alone."""
    handlers = DTensor._op_dispatcher._custom_op_handlers
    unscale = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default

    def wrong(op, args, kwargs):
        grads, *rest = args
        return op([grad.to_local() for grad in grads], *rest, **kwargs)

    patch(DTensor._op_dispatcher, "_custom_op_handlers", handlers | {unscale: wrong})


@instead_of(torch.optim.SGD, "step")
def minimizes_shards(right, self, closure=None):
    """SGD goes down the gradient of sharded parameters, whatever ``maximize`` says."""
    for group in self.param_groups:
        if any(isinstance(parameter, DTensor) for parameter in group["params"]):
            group["maximize"] = False
    return right(self, closure)


@instead_of(torch.optim.Adam, "step")
def misplaced_optimizer_state(right, self, closure=None):
    """Adam keeps its first moments whole on every rank."""
    right(self, closure)
    for state in self.state.values():
        if isinstance(state["exp_avg"], DTensor):
            state["exp_avg"] = state["exp_avg"].full_tensor()


@instead_of(torch.optim.SGD, "step")
def moved_frozen_parameter(right, self, closure=None):
    """SGD moves sharded parameters that have no gradient."""
    right(self, closure)
    with torch.no_grad():
        for p in (p for group in self.param_groups for p in group["params"]):
            if isinstance(p, DTensor) and p.grad is None:
                p.to_local().add_(1)


@instead_of(torch.optim.Optimizer, "load_state_dict")
def optimizer_state_lost(right, self, state_dict):
    """An optimizer of DTensors loads everything but the state of its parameters."""
    if any(isinstance(p, DTensor) for group in self.param_groups for p in group["params"]):
        state_dict = {**state_dict, "state": {}}
    right(self, state_dict)


def orthogonalizes_shards(patch=setattr):
    """Muon orthogonalizes every shard of a matrix, in place of the matrix."""
    module = torch.optim._muon
    orthogonal = module._zeropower_via_newtonschulz

    def wrong(grad, *options):
        if not isinstance(grad, DTensor):
            return orthogonal(grad, *options)
        return DTensor.from_local(
            orthogonal(grad.to_local(), *options),
            grad.device_mesh,
            grad.placements,
            shape=grad.shape,
            stride=grad.stride(),
        )

    patch(module, "_zeropower_via_newtonschulz", wrong)


@instead_of(torch.optim.RMSprop, "step")
def rmsprop_goes_too_far(right, self, closure=None):
    """RMSprop steps sharded parameters twice as far."""
    for group in self.param_groups:
        if any(isinstance(parameter, DTensor) for parameter in group["params"]):
            group["lr"] *= 2
    return right(self, closure)


@instead_of(GradScaler, "_unscale_grads_")
def shards_stay_scaled(right, self, optimizer, inv_scale, found_inf, allow_fp16):
    """A GradScaler leaves the gradients of shards as they are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(isinstance(p, DTensor) for p in parameters):
        inv_scale = inv_scale * 0 + 1
    return right(self, optimizer, inv_scale, found_inf, allow_fp16)


@instead_of(torch.optim.SGD, "step")
def steps_added_groups_with_the_first_rate(right, self, closure=None):
    """SGD steps sharded parameters of later groups with the learning rate of the first group."""
    for group in self.param_groups:
        if any(isinstance(p, DTensor) for p in group["params"]):
            group["lr"] = self.param_groups[0]["lr"]
    return right(self, closure)


@instead_of(torch.optim.SGD, "step")
def steps_with_the_first_rate(right, self, closure=None):
    """SGD steps sharded parameters with the learning rate that it was made with."""
    for group in self.param_groups:
        if any(isinstance(parameter, DTensor) for parameter in group["params"]):
            group["lr"] = self.defaults["lr"]
    return right(self, closure)


@instead_of(GradScaler, "unscale_")
def unscales_shards_twice(right, self, optimizer):
    """A GradScaler forgets that it has unscaled the gradients of shards: its step does it
    again.
    """
    right(self, optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(isinstance(p, DTensor) for p in parameters):
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY


@instead_of(torch.optim.Adam, "step")
def wrong_optimizer_state(right, self, closure=None):
    """Adam doubles the second moments of sharded parameters once it has used them."""
    right(self, closure)
    for state in self.state.values():
        if isinstance(state["exp_avg_sq"], DTensor):
            state["exp_avg_sq"].to_local().mul_(2)


@instead_of(torch.optim.SGD, "step")
def wrong_step(right, self, closure=None):
    """SGD steps twice as far on sharded parameters."""
    held = [p for group in self.param_groups for p in group["params"] if isinstance(p, DTensor)]
    before = [p.to_local().clone() for p in held]
    right(self, closure)
    with torch.no_grad():
        for p, old in zip(held, before, strict=True):
            p.to_local().add_(p.to_local() - old)
