"""A module whose recomputation stops early stays in its forward state.

``torch.utils.checkpoint`` ends a recomputation by an exception as soon as it has all tensors that
were saved (early stop). If that happens within the forward of a wrapped module, its post-forward
hook is not called, because ``FSDPState.init``
(torch/distributed/fsdp/_fully_shard/_fsdp_state.py) registers it without ``always_call``. Unless the
backward later reaches an output below the same FSDP root, nothing else ends the forward of the
group. It stays unsharded in its forward state, in which ``reshard()`` does nothing and the next
forward registers no post-backward. The hooks of list groups are registered with ``always_call``
already. And the post-forward of a recomputation leaves the group unsharded for a post-backward
(``FSDPParamGroup.post_forward``) that never comes where the backward does not need the group.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: a module stays unsharded after backward when its recomputation stops early"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "After gradient computation, FSDP frees the unsharded parameters and reduce-scatters the "
    "unsharded gradients across data-parallel workers.",
    "fully_shard",
)
SETUP = (
    "A wrapped part of a model is trained by itself, without its FSDP root, and with activation "
    "checkpointing (non-reentrant, as recommended). It stays unsharded, ``reshard()`` does "
    "nothing, and its next forward does not use the parameters that the step has changed."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import copy

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        penalty = x * x  # has a loss of its own
        return penalty, self.linear(x)


def train(block):
    x = torch.ones(1, 2, requires_grad=True)  # equal on all ranks
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    sum(out.sum() for out in checkpoint(block, x, use_reentrant=False)).backward()
    checkpoint(block, x, use_reentrant=False)[0].sum().backward()
    if block is model:
        block.linear.reshard()  # before the step, parameters have to be sharded
    optimizer.step()
    return block(x)[1]


mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
plain = Block()
model = copy.deepcopy(plain)
fully_shard(model.linear, mesh=mesh)
expected, observed = train(plain), train(model)
assert torch.allclose(observed, expected), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="none found",
        query=(
            "FSDP2 activation checkpoint early stop recomputation post-forward hook not run "
            "parameters unsharded after backward"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState.init",
        """
        self._post_forward, prepend=False
        """,
        """
        self._post_forward, prepend=False, always_call=True
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_forward",
        """
        if not is_bw():
            self.reshard()
            self._record_post_forward()
        """,
        """
        if not is_bw():
            self.reshard()
            self._record_post_forward()
        else:
            def reshard_at_the_end():
                if (
                    self._training_state == TrainingState.IDLE
                    and self.is_unsharded
                    and self.reshard_after_backward
                ):
                    self.reshard()

            torch.autograd.Variable._execution_engine.queue_callback(reshard_at_the_end)
        """,
    ),
)
