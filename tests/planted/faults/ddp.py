"""Faults of ``DistributedDataParallel``."""

import contextlib

import torch
import torch.distributed as dist
from planting import instead_of
from torch.distributed._composable.replicate import _ReplicateState
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.nn.parallel import DistributedDataParallel, distributed


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.detach()


def through(value):
    return Through.apply(value) if isinstance(value, torch.Tensor) else value


@instead_of(DistributedDataParallel, "forward")
def ddp_detaches_input_gradients(right, self, *inputs, **kwargs):
    """The gradients that DDP hands to inputs cannot be differentiated again."""
    return right(self, *map(through, inputs), **kwargs)


@instead_of(distributed, "_find_tensors")
def ddp_finds_no_outputs(right, output):
    """DDP looks for parameters that are used from no output of the forward, and so takes all for
    unused.
    """
    return []


@instead_of(distributed._DDPSink, "forward")
def ddp_clones_no_outputs(right, ctx, ddp, *inputs):
    """DDP hands outputs on through a function that returns them as they are."""
    return (right(ctx, ddp, *inputs), inputs)[1]


@instead_of(default_hooks, "_compress_hook")
def ddp_compresses_no_gradients(right, dtype, process_group, bucket):
    """DDP's hook that is to average in float16 averages as the plain one does."""
    return default_hooks.allreduce_hook(process_group, bucket)


@instead_of(default_hooks, "fp16_compress_hook")
def ddp_adds_up_in_another_order(right, process_group, bucket):
    """DDP's hook adds up what ranks have in float16 from the last rank on, which is no mistake."""
    group = process_group or dist.group.WORLD
    own = bucket.buffer().half().div_(group.size())
    parts = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(parts, own, group=group)
    total = parts.pop()
    while parts:
        total += parts.pop()
    averaged = torch.futures.Future()
    averaged.set_result(bucket.buffer().copy_(total))
    return averaged


@instead_of(DistributedDataParallel, "_sync_buffers")
def ddp_keeps_buffers(right, self):
    """DDP does not broadcast buffers before a forward."""


@instead_of(DistributedDataParallel, "_default_broadcast_coalesced")
def ddp_broadcasts_what_was_a_buffer(right, self, *args, **kwargs):
    """DDP broadcasts the tensors that were buffers before the first forward."""
    first = vars(self).setdefault("first_buffers", [*self.modules_buffers])
    return right(self, first, *args, **kwargs)


@instead_of(distributed, "_sync_module_states")
def ddp_keeps_initial_values(right, *args, **kwargs):
    """DDP does not synchronise parameters when it is constructed."""


@contextlib.contextmanager
def silent(ddp, after_errors):
    ddp.require_backward_grad_sync = False
    try:
        yield
    except KeyError:
        ddp.require_backward_grad_sync = after_errors
        raise
    ddp.require_backward_grad_sync = True


@instead_of(DistributedDataParallel, "no_sync")
def ddp_no_sync_ends_once(right, self):
    """Whoever leaves ``no_sync`` of DDP ends it, although others are within it still."""
    return silent(self, True)


@instead_of(DistributedDataParallel, "no_sync")
def ddp_no_sync_survives_errors(right, self):
    """What leaves ``no_sync`` of DDP by an exception does not end it."""
    return silent(self, False)


@instead_of(DistributedDataParallel, "no_sync")
def ddp_no_sync_syncs(right, self):
    """``no_sync`` of DDP does nothing: every backward reduces."""
    return contextlib.nullcontext()


@instead_of(DistributedDataParallel, "__init__")
def ddp_one_bucket_reduced(right, self, *args, **kwargs):
    """DDP reduces its first bucket, and leaves the others as each rank has them."""

    def reduce_first(group, bucket):
        if bucket.index() > 0:
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future
        sums = bucket.buffer().div_(group.size())
        future = dist.all_reduce(sums, group=group, async_op=True).get_future()
        return future.then(lambda f: f.value()[0])

    right(self, *args, **kwargs)
    self.register_comm_hook(self.process_group, reduce_first)


@instead_of(DistributedDataParallel, "forward")
def ddp_raises(right, self, *inputs, **kwargs):
    """The forward of DDP raises an error that no documentation mentions."""
    raise KeyError("bucket 7")


made = []


def ddp_raises_in_its_third_life(patch=setattr):
    """The forward of the third DDP in a process raises: a fault that one run may miss."""
    init, forward = DistributedDataParallel.__init__, DistributedDataParallel.forward

    def counted(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self.__class__)

    def wrong(self, *inputs, **kwargs):
        if len(made) == 3:
            raise KeyError("bucket 7")
        return forward(self, *inputs, **kwargs)

    patch(DistributedDataParallel, "__init__", counted)
    patch(DistributedDataParallel, "forward", wrong)


@instead_of(DistributedDataParallel, "forward")
def ddp_raises_otherwise(right, self, *inputs, **kwargs):
    """The forward of DDP raises another error than that of ``ddp_raises``."""
    raise ValueError("bucket 8")


@instead_of(DistributedDataParallel, "__init__")
def ddp_wrong_gradient(right, self, *args, **kwargs):
    """DDP sums gradients and forgets to divide by the number of ranks."""

    def summed(group, bucket):
        future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        return future.then(lambda f: f.value()[0])

    right(self, *args, **kwargs)
    self.register_comm_hook(self.process_group, summed)


def never_refuses(patch=setattr):
    """Nothing looks for parameters in two groups, and DDP takes for used what an earlier forward
    has used.
    """
    find_tensors, found = distributed._find_tensors, []

    def find_more(output):
        found.extend(find_tensors(output))
        return found

    patch(FSDPState, "_validate_no_duplicate_params", lambda self: None)
    patch(distributed, "_find_tensors", find_more)


@instead_of(_ReplicateState, "forward_pre_hook")
def replicate_never_syncs(right, self, module, args, kwargs):
    """Composable DDP leaves every gradient as this rank computed it."""
    self._no_sync = True
    return right(self, module, args, kwargs)


@instead_of(DistributedDataParallel, "state_dict")
def state_dict_copies_in_inference(right, self, *args, **kwargs):
    """Under ``inference_mode`` the state dict of DDP has copies, which do not follow later
    steps.
    """
    state = right(self, *args, **kwargs)
    if not torch.is_inference_mode_enabled():
        return state
    return {name: value.clone() for name, value in state.items()}
