"""Faults that scripts of cases show."""

import dataclasses

import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.fsdp
from planting import instead_of
from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, _runtime_utils
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor._dtensor_spec import TensorMeta
from torch.nn.parallel import DistributedDataParallel


@instead_of(FullyShardedDataParallel, "clip_grad_norm_")
def clips_flat_gradients_raises(right, self, max_norm, norm_type=2.0):
    """FSDP1's own ``clip_grad_norm_`` raises."""
    raise RuntimeError("planted: nothing is clipped")


def sum_bucket(group, bucket):
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


@instead_of(DistributedDataParallel, "__init__")
def ddp_sums(right, self, *args, **kwargs):
    """DDP adds gradients up where it should average them."""
    right(self, *args, **kwargs)
    self.register_comm_hook(self.process_group, sum_bucket)


@instead_of(torch.distributed.fsdp, "fully_shard")
def collective_of_one_rank(right, *args, **kwargs):
    """Rank 1 issues a collective that the others do not."""
    alone = dist.new_group([1])
    if dist.get_rank() == 1:
        dist.broadcast(torch.zeros(1), 1, group=alone)
    return right(*args, **kwargs)


@instead_of(_runtime_utils, "_finalize_params")
def fsdp1_loses_gradients(right, state):
    """FSDP1 loses the gradients of original parameters at the end of the backward."""
    right(state)
    if state._handle:
        for parameter in state._handle.flat_param._params:
            parameter.grad = None


@instead_of(_fsdp_param_group, "foreach_all_gather")
def gathers_once_more(right, *args, **kwargs):
    """Every group is gathered once more than needed."""
    right(*args, **kwargs)
    return right(*args, **kwargs)


@instead_of(dcp, "load")
def loads_nothing(right, state, **options):
    """A checkpoint that is loaded in place leaves everything as it was."""


@instead_of(FSDPParamGroup, "post_forward")
def no_reshard_after_forward(right, self, module, input, output):
    """``fully_shard`` forgets to reshard after a forward."""
    return output


@instead_of(FSDPParamGroup, "post_backward")
def raises_without_sync(right, self, *unused):
    """``fully_shard`` raises in a backward that is not to reduce gradients."""
    if not self.reduce_grads:
        raise RuntimeError("planted: no reduction wanted")
    return right(self, *unused)


def skipped(collective):
    def call(*args, **kwargs):
        return None if dist.get_rank() == 1 else collective(*args, **kwargs)

    return call


def rank_skips_reduce_scatter(patch=setattr):
    """Rank 1 does not take part in any reduce-scatter."""
    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(dist, name):
            patch(dist, name, skipped(getattr(dist, name)))


def doubled(collective):
    def call(*args, **kwargs):
        tensor = kwargs.get("input", args[1] if len(args) > 1 else None)
        tensor.mul_(2)
        return collective(*args, **kwargs)

    return call


def reduce_scatter_doubles(patch=setattr):
    """Every reduce-scatter gives twice the sum."""
    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(dist, name):
            patch(dist, name, doubled(getattr(dist, name)))


@instead_of(dist, "all_reduce")
def replicas_drift(right, tensor, *args, **kwargs):
    """Rank 0 of an HSDP mesh keeps its own gradients: the all-reduce over replicas leaves it
    out.
    """
    group = kwargs.get("group")
    if group is None or dist.get_world_size(group) == dist.get_world_size():
        return right(tensor, *args, **kwargs)
    own = tensor.clone()
    kwargs["async_op"] = False
    right(tensor, *args, **kwargs)
    if dist.get_rank() == 0:
        tensor.copy_(own)
    return None


@instead_of(FSDPParam, "to_sharded_dtensor")
def stale_spec_of_gradients(right, self, tensor):
    """The specs of gradients say another dtype than the gradients have."""
    made = right(self, tensor)
    if not hasattr(self, "sharded_param"):  # that of the parameter itself
        return made
    said = TensorMeta(made.shape, made.stride(), torch.bfloat16)
    made._spec = dataclasses.replace(made._spec, tensor_meta=said)
    return made
