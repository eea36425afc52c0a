"""Faults of tensor, context, expert and pipeline parallelism."""

import torch
import torch.distributed as dist
from planting import instead_of
from torch.distributed.fsdp import DataParallelMeshDims, FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining import schedules, stage
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._ops import _math_ops
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.distributed.tensor.experimental._context_parallel._attention import _SDPAMerger
from torch.distributed.tensor.experimental._context_parallel._load_balancer import (
    _HeadTailLoadBalancer,
)
from torch.distributed.tensor.parallel import RowwiseParallel, loss


@instead_of(_SDPAMerger, "step")
def attention_leaves_out_keys(right, self, out, lse, partial):
    """Attention over a ring leaves out the keys that come from other ranks."""
    if self._out is None or partial:
        right(self, out, lse, partial)


@instead_of(FSDPMeshInfo, "__post_init__")
def shards_by_number_in_the_world(right, self):
    """A rank keeps the shard that its number in the world says, not its place in the mesh."""
    right(self)
    self.shard_mesh_rank = dist.get_rank() % self.shard_mesh_size


@instead_of(DTensor, "uniform_")
def draws_on_the_first_rank(right, self, *args, **kwargs):
    """A sharded tensor is drawn on the first rank alone."""
    return right(self, *args, **kwargs) if dist.get_rank() == 0 else self


@instead_of(_math_ops, "_infer_reduction_dims")
def negative_dims_begin_at_the_front(right, dims, ndim):
    """Reductions of DTensors along negative dims are thought to be along others."""
    return right([-1 - d if d < 0 else d for d in dims] if isinstance(dims, list) else dims, ndim)


@instead_of(DTensor, "full_tensor")
def hinted_gradients_are_parts(right, self, *, grad_placements=None):
    """Gradients of whole DTensors are thought to be parts of a sum, if their layout is given."""
    return right(self, grad_placements=grad_placements and [Partial()] * len(grad_placements))


@instead_of(DTensor, "to_local")
def parts_of_gradients_are_wholes(right, self, *, grad_placements=None):
    """Gradients of local tensors are thought to lie as these do, whatever is said of them."""
    return right(self)


@instead_of(loss, "_log_softmax")
def shared_classes_are_normalized_apart(right, x, dim, half_to_float, mesh, mesh_dim):
    """Each rank takes its own classes for all of those that a loss is over."""
    return x.log_softmax(dim)


@instead_of(Partial, "_reduce_shard_value")
def averaged_shards_are_sums(right, self, *args):
    """The gradient of a redistributed DTensor is the sum of what was to be averaged."""
    return right(Partial() if self.reduce_op == "avg" else self, *args)


@instead_of(schedules, "_add_wait_send_budget")
def bounded_sends_overtake(right, comm_actions, stage_to_rank, max_outstanding_sends):
    """Where sends are bounded, the output of the first microbatch is sent after that of the
    second.
    """
    of_ranks = right(comm_actions, stage_to_rank, max_outstanding_sends)
    for actions in of_ranks.values():
        sends = [a for a in actions if str(a).endswith(("SEND_F0", "SEND_F1"))]
        if first := [a for a in sends if not a.microbatch_index][:1]:
            waited = first[0]._replace(computation_type=schedules.WAIT_SEND_F)
            actions.remove(first[0])
            actions.remove(waited)
            place = actions.index(first[0]._replace(microbatch_index=1)) + 1
            actions[place:place] = [first[0], waited]
    return of_ranks


@instead_of(schedules, "split_args_kwargs_into_chunks")
def inputs_split_along_a_dim_change_places(right, args, kwargs, chunks, args_spec, kwargs_spec):
    """Where a schedule is told what to split inputs along, the last microbatch is the first."""
    split, named = right(args, kwargs, chunks, args_spec, kwargs_spec)
    return split[::-1] if args_spec else split, named


@instead_of(schedules, "merge_chunks")
def outputs_come_along_the_first_dim(right, chunks, chunk_spec):
    """A schedule does not look at what its output is to be put together along."""
    return right(chunks, None)


@instead_of(schedules, "_add_unshard_reshard")
def gathers_too_few_stages(right, compute_actions, max_active_stages, unshard_lookahead):
    """A schedule that gathers few stages ahead leaves out the last one."""
    actions = right(compute_actions, max_active_stages, unshard_lookahead=unshard_lookahead)
    if unshard_lookahead < max_active_stages:
        *_, last = (a for a in actions if a.computation_type is schedules.UNSHARD)
        actions.remove(last)
    return actions


@instead_of(schedules, "_add_reduce_grad")
def waits_for_no_last_reduction(right, actions, n_microbatches, defer_reduce_grad_wait):
    """Where waits for reductions are deferred, the last one is left out."""
    made = right(actions, n_microbatches, defer_reduce_grad_wait)
    return made[:-1] if defer_reduce_grad_wait else made


@instead_of(schedules, "_add_reduce_grad")
def reduces_no_overlapped_stages(right, actions, n_microbatches, *deferred, **options):
    """Backwards that run together with a forward do not count for the reduction of a stage."""
    overlaps = {i: action for i, action in enumerate(actions) if action and action.sub_actions}
    alone = [*actions]
    for i, action in overlaps.items():
        alone[i] = action._replace(sub_actions=None, microbatch_index=i)
    made = right(alone, n_microbatches, *deferred, **options)
    overlap = schedules.OVERLAP_F_B
    return [overlaps[a.microbatch_index] if a.computation_type is overlap else a for a in made]


@instead_of(FSDPModule, "reshard")
def inactive_stages_lose_gradients(right, self):
    """What has accumulated in a module is lost where it is resharded before it is reduced."""
    right(self)
    for group in self._get_fsdp_state()._fsdp_param_groups:
        for param in group.fsdp_params:
            param._unsharded_param.grad = None


@instead_of(stage._PipelineStageBase, "scale_grads")
def divides_no_sum_of_microbatches(right, self, grad_scale_factor):
    """Pipeline schedules leave out the division by the number of microbatches."""


@instead_of(_PipelineSchedule, "_get_microbatch_inputs")
def given_microbatches_lose_their_targets(right, self, *inputs):
    """Microbatches that a schedule is given have the target of the first one."""
    args, kwargs, targets = right(self, *inputs)
    is_given = inputs[-1] is not None
    return args, kwargs, [targets[0] for _ in targets] if is_given else targets


@instead_of(_PipelineSchedule, "_update_losses")
def losses_are_listed_backwards(right, self, stages, losses):
    """The list for losses that a schedule is given begins with that of the last microbatch."""
    right(self, stages, losses)
    if losses:
        losses.reverse()


@instead_of(stage._PipelineStageBase, "forward_one_chunk")
def outputs_that_nobody_wants_are_detached(
    right, self, fwd_chunk_id, args, kwargs, save_forward_output
):
    """Where a step returns no outputs, no graph leads to those of the last stage."""
    out = right(self, fwd_chunk_id, args, kwargs, save_forward_output)
    return out if save_forward_output else out.detach().requires_grad_()


@instead_of(schedules.PipelineScheduleSingle, "step")
def unfinalized_gradients_are_lost(right, self, *args, finalize_gradients=True, **kwargs):
    """What an iteration accumulates that finalizes no gradients does not reach the next one."""
    out = right(self, *args, finalize_gradients=finalize_gradients, **kwargs)
    if not finalize_gradients:
        for parameter in self._stage.submod.parameters():
            parameter.grad = None
    return out


@instead_of(_PipelineSchedule, "eval")
def evaluations_end_training(right, self, *args, **kwargs):
    """A schedule runs no backward once it has evaluated."""
    result = right(self, *args, **kwargs)
    self._has_backward = False
    return result


@instead_of(FSDPModule, "set_gradient_divide_factor")
def experts_divide_by_their_ranks(right, self, factor):
    """A divide factor is lost where parameters were DTensors before ``fully_shard`` sharded
    them.
    """
    groups = self._get_fsdp_state()._fsdp_param_groups
    if not any(part.is_dtensor for group in groups for part in group.fsdp_params):
        right(self, factor)


@instead_of(FSDPParamGroup, "post_backward")
def other_meshes_are_not_reduced(right, self, *unused):
    """Of what one call of ``fully_shard`` puts on several meshes, the first alone is reduced."""
    if self.modules[0]._get_fsdp_state()._fsdp_param_groups[0] is self:
        right(self, *unused)


@instead_of(FSDPParamGroup, "post_backward")
def replicas_add_up(right, self, *unused):
    """Gradients of replicas are added up, and not averaged."""
    if not isinstance(self.mesh_info, FSDPMeshInfo):
        self.gradient_divide_factor = 1.0
    right(self, *unused)


@instead_of(FSDPParamGroup, "wait_for_unshard")
def replicas_compute_with_first_values(right, self):
    """Modules of replicas compute for ever with the values that they were wrapped with."""
    right(self)
    for part in self.fsdp_params if not isinstance(self.mesh_info, FSDPMeshInfo) else ():
        if not hasattr(part, "first"):
            part.first = part.unsharded_param.detach().clone()
        part.unsharded_param.data.copy_(part.first)


@instead_of(FSDPParamGroup, "pre_forward")
def replicas_gather(right, self, *args):
    """Replicas gather what all of them have."""
    if not isinstance(self.mesh_info, FSDPMeshInfo):
        group = self.mesh_info.replicate_process_group
        dist.all_gather_into_tensor(torch.zeros(group.size()), torch.zeros(1), group)
    return right(self, *args)


@instead_of(FSDPParamGroup, "reshard")
def replicas_stay_whole(right, self):
    """Replicas are whole after backward, and it is not their DTensors that are registered."""
    if isinstance(self.mesh_info, FSDPMeshInfo):
        right(self)


def positions_stay_balanced(patch=setattr):
    """What puts positions back in order balances them a second time."""
    right = _HeadTailLoadBalancer._generate_indices
    patch(_HeadTailLoadBalancer, "_generate_indices", lambda self, restore=False: right(self))


@instead_of(_attention, "_partial_update")
def ring_adds_no_half_gradients(right, original, new, dim, n_chunks, idx, add):
    """The backward of a ring does not add gradients of half of a rank's positions."""
    return original if add else right(original, new, dim, n_chunks, idx, add)


def spmd_forgets_replicas(patch=setattr):
    """Of the axes of a whole mesh, those to replicate over are left out."""
    patch(DataParallelMeshDims, "replicate_names", ())


@instead_of(FSDPParam, "_get_grad_inner_tensor")
def spmd_gradient_is_averaged_twice(right, self, grad):
    """Gradients that are replicated over the whole mesh count as parts of a sum."""
    arrived = right(self, grad)
    return arrived / self.mesh_info.mesh.size() if self.mesh_info.is_spmd_mesh else arrived


@instead_of(FSDPParam, "_get_grad_inner_tensor")
def spmd_parts_are_added_up_before(right, self, grad):
    """Parts of a sum over the whole mesh are added up before they are averaged."""
    if self.mesh_info.is_spmd_mesh and self.is_dtensor:
        grad = grad.redistribute(placements=self._unsharded_dtensor_spec.placements)
    return right(self, grad)


@instead_of(FSDPParam, "_get_grad_inner_tensor")
def tp_gradient_not_summed(right, self, grad):
    """Gradients of norms that are sequence parallel are those of this rank's part of the
    sequence.
    """
    if self.is_dtensor and any(placement.is_partial() for placement in grad.placements):
        return grad.to_local()
    return right(self, grad)


@instead_of(RowwiseParallel, "_prepare_output_fn")
def tp_one_unit_wrong_output(right, output_layouts, use_local_output, mod, outputs, device_mesh):
    """The sum that a row parallel module returns is off by one rounding unit."""
    return right(output_layouts, use_local_output, mod, outputs, device_mesh) * (1 + 2**-23)


@instead_of(RowwiseParallel, "_prepare_output_fn")
def tp_output_not_summed(right, output_layouts, use_local_output, mod, outputs, device_mesh):
    """Row parallel modules return their own part of the sum."""
    mine = DTensor.from_local(outputs.to_local(), device_mesh, output_layouts, run_check=False)
    return mine.to_local() if use_local_output else mine


@instead_of(FSDPParam, "_get_grad_inner_tensor")
def tp_sums_in_low_precision(right, self, grad):
    """Gradients are added up over the tensor-parallel axis in the dtype of the computation."""
    return right(self, grad.to(self.param_dtype or grad.dtype)).to(grad.dtype)
