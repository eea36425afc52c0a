"""FSDP1 keeps the tensors of a forward in place of the parameters of a unit that a backward
misses.

``_catch_all_reshard`` in ``torch/distributed/fsdp/_runtime_utils.py`` takes a unit for resharded
where the flat parameter lies in its shard's memory. With ``NO_SHARD``, or what a group of one rank
makes of the others, it always does. With ``use_orig_params`` a unit without a post-backward
(frozen, unused, or prefetched and not run) then keeps views in place of its parameters, and the
next forward takes these for new parameters (``_writeback_orig_params``): the optimizer's
parameters get no gradients from then on.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "FSDP1 use_orig_params: parameters get no gradients when a backward has missed their "
    "unsharded unit"
)
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "FSDP preserves the original parameter variables", "FullyShardedDataParallel, use_orig_params"
)
SETUP = (
    "One rank, as in debugging, or ``NO_SHARD``, and a part of the model that an iteration does"
    " not use (an expert, a branch). From the next iteration on the optimizer's parameters of "
    "that part get no gradients."
)
WORKAROUND = "Use DDP in place of ``NO_SHARD``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
options = dict(
    device_id=torch.device("cpu"),
    sharding_strategy=ShardingStrategy.NO_SHARD,
    use_orig_params=True,
)
model[0] = FullyShardedDataParallel(model[0], **options)
head = model[1]
model = FullyShardedDataParallel(model, **options)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(1, 2)
head.requires_grad_(False)  # warm up what is below the head
model(x).sum().backward()
optimizer.step()
head.requires_grad_(True)  # then train all
before = head.weight.detach().clone()
model(x).sum().backward()
optimizer.step()
assert not torch.equal(head.weight, before), f"the head does not change: {before}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch issue 83956, which the code names: the check for what is resharded is "
        "brittle",
        query="FSDP NO_SHARD use_orig_params parameters replaced by tensor views unused module "
        "_catch_all_reshard already_resharded",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_catch_all_reshard",
        """
        and not state._handle._skipped_use_sharded_views
        """,
        """
        and not state._handle._skipped_use_sharded_views
        # Unsharded and sharded data are the same for `NO_SHARD`, but
        # views may be in place of the original parameters
        and (
            state._handle.uses_sharded_strategy
            or not state._handle._use_orig_params
        )
        """,
    ),
    Edit(
        "torch.distributed.fsdp._runtime_utils:_root_pre_forward",
        """
        handle._prefetched = False
        """,
        """
        if handle._prefetched and not handle.uses_sharded_strategy:
            _reshard(state, handle, False)  # prefetched, and did not run
        handle._prefetched = False
        """,
    ),
)
