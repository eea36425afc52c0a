"""A recomputation unshards a group that had its post-backward already, and nothing shards it
again.

Where two forwards come before one backward, or a module is called twice, the recomputation of the
older call comes after the post-backward of the younger one. ``FSDPState._pre_forward`` unshards
the group for it (torch/distributed/fsdp/_fully_shard/_fsdp_state.py). If no further post-backward
follows, the end of the backward (``_root_post_backward_final_callback``) passes the group over, as
it is in its post-backward state: its parameters stay unsharded, and a step changes others than the
next forward computes with.
Torch 2.15 shards such groups again in ``finalize_backward()``, which only runs where users call it
themselves.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: the next forward uses old weights when a group is recomputed after its "
    "post-backward"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "After gradient computation, FSDP frees the unsharded parameters and reduce-scatters the "
    "unsharded gradients across data-parallel workers.",
    "fully_shard",
)
SETUP = (
    "A model returns hidden states beside its output, activation checkpointing spans several "
    "groups, and two batches are run before one backward, as for a contrastive or a preference "
    "loss (issue 153354 was DPO); of the first batch only the hidden states enter the loss. The "
    "output part of the model stays unsharded through the optimizer step, which takes memory, and "
    "its next forward is wrong: that of an evaluation after the step, or of a next batch whose "
    "output does enter the loss."
)
WORKAROUND = "Call ``reshard()`` on every FSDPModule between the backward and the step."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import copy

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.body(x)
        return self.head(hidden), hidden


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(1, 4)  # equal on all ranks, so plain training needs no all-reduce
    _, hidden = checkpoint(model, x, use_reentrant=False)  # of this batch the hidden states only
    logits, other = checkpoint(model, 2 * x, use_reentrant=False)
    (hidden.sum() + logits.sum() + other.sum()).backward()
    optimizer.step()
    return checkpoint(model, x, use_reentrant=False)[0]


mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
plain = Model()
model = copy.deepcopy(plain)
fully_shard(model.head, mesh=mesh)
fully_shard(model, mesh=mesh)
expected, observed = train(plain), train(model)
assert torch.allclose(observed, expected, atol=1e-4), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/171779",
        says="near: merged for issue 153354, unshards in the recomputation and does not shard "
        "again",
        query=(
            "FSDP2 activation checkpointing parameters unsharded after backward multiple forward "
            "before backward nested fully_shard recompute post_backward"
        ),
        date="2026-11-23",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/issues/187437",
        says="near: closed, a crash in the same kind of program",
        query=(
            "FSDP2 nested fully_shard checkpoint two forward passes stale weights parameters "
            "unsharded after backward"
        ),
        date="2026-11-23",
    ),
    Public(
        link="https://github.com/NVIDIA/Megatron-LM/pull/6153",
        says="near: merged, the same consequence in Megatron's own FSDP, of a prefetch in a "
        "recomputation",
        query=(
            "FSDP2 checkpoint recompute parameters left unsharded after backward optimizer step "
            "has no effect next forward stale two forwards DPO"
        ),
        date="2026-11-24",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback",
        """
        fsdp_param_group._training_state = TrainingState.IDLE
        """,
        """
        elif fsdp_param_group.reshard_after_backward:
            fsdp_param_group.reshard()
        fsdp_param_group._training_state = TrainingState.IDLE
        """,
    ),
)
