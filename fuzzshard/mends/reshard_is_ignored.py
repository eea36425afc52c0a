"""``FSDPModule.reshard()`` does nothing during a forward, and does not drop a pending all-gather.

``FSDPModule.reshard`` (torch/distributed/fsdp/_fully_shard/_fully_shard.py) calls the function that
the hooks call after forward. ``FSDPParamGroup.reshard`` follows ``reshard_after_forward`` while the
group is in its forward state. A list group that ran in part stays in that state, and so does a
module whose recomputation stopped early. The second case is a group that counts as sharded while an
all-gather is pending that nobody has waited for (``unshard(async_op=True)``, or a prefetch of a
module that does not run). ``reshard()`` keeps the output of that all-gather, and the next forward
takes it for its own: it computes with the parameters from before the step. The hooks that shard
before a state dict is saved or loaded (``FSDPParamGroup._register_state_dict_hooks``) keep it as
well: the next forward uses the parameters from before the load. If the all-gather began on the
smaller mesh of an int ``reshard_after_forward``, its sizes do not fit the mesh that the parameters
are on by then. Only the end of a backward drops such an all-gather
(``FSDPParamGroup.finalize_backward``). Where nothing shards, a prefetched all-gather is also used
for later parameters; this change does not affect that. It waits for the all-gather and copies its
output out before it drops both; torch could drop them without the copy.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDPModule.reshard: the next forward uses old weights when an all-gather is pending"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "Before forward, FSDP all-gathers the sharded parameters across the data-parallel workers to "
    "get the unsharded parameters for forward computation.",
    "fully_shard",
)
SETUP = (
    "Forward prefetch is set from block to block, and part of the model runs by itself after the "
    "backward and before the step: an evaluation that exits early, or features for a metric. The "
    "block after the exit was prefetched and does not run. After the step, its next forward uses "
    "the weights from before it (or from before a ``load_state_dict``). Calling ``reshard()`` on "
    "every module before the step does not help. With the fix below it does, and it is still "
    "needed."
)
WORKAROUND = (
    "Call ``unshard()`` on the module, which waits for the all-gather, and then ``reshard()``."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import copy

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8)  # equal on all ranks, so plain training needs no all-reduce
    model(x).sum().backward()
    with torch.no_grad():
        model[0](x)  # features for a metric; model[1] is prefetched and does not run
    for block in model:
        if isinstance(block, FSDPModule):
            block.reshard()
    optimizer.step()
    return model(x)


mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
model = copy.deepcopy(plain)
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
model[0].set_modules_to_forward_prefetch([model[1]])
expected, observed = train(plain)[0], train(model)[0]
assert torch.allclose(observed, expected, atol=1e-4), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/137348",
        says="near: merged, clears such an all-gather at the end of a backward only",
        query=(
            "fully_shard reshard() stale parameters unshard(async_op=True) prefetch pending "
            "all-gather after optimizer step"
        ),
        date="2026-11-23",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/110139",
        says="near: merged, for FSDP1, where a prefetch outlived an evaluation",
        query=(
            "FSDP2 prefetched module does not run all-gather result pending outdated weights "
            "evaluation early exit"
        ),
        date="2026-11-23",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/issues/117421",
        says="near: closed, a state dict that is loaded after a forward of FSDP1 is not used",
        query=(
            "fully_shard load_state_dict stale weights pending all-gather unshard(async_op=True) "
            "state dict hook to_sharded"
        ),
        date="2026-11-26",
    ),
    Public(
        query="FSDP2 forward uses stale weights after optimizer.step because "
        "unshard(async_op=True) all-gather not waited, reshard no-op",
        date="2026-11-24",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule.reshard",
        """
            fsdp_param_group.reshard()
        """,
        """
            fsdp_param_group.wait_for_unshard()
            fsdp_param_group._to_sharded()
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._to_sharded",
        """
        if not self.is_sharded:
        """,
        """
        if not self.is_sharded:
            self.wait_for_unshard()
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:"
        "FSDPParamGroup._register_state_dict_hooks",
        """
            self._to_sharded()
        """,
        """
            self.wait_for_unshard()
            self._to_sharded()
        """,
    ),
)
