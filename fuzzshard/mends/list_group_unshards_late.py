"""A group of several modules unshards in backward only for the module whose forward ran last.

``fully_shard([a, b])`` registers one post-forward hook on each module, and only the one that
completes the group runs ``FSDPState._post_forward``, which registers the pre-backward hook on that
module's output (``_register_group_forward_hooks`` in
``torch/distributed/fsdp/_fully_shard/_fsdp_state.py``). The outputs of the other modules have no
hook. Where a backward comes to them first, or only to them, it reads sharded parameters: a mix of
DTensors and tensors, freed storage, or gradients that are never reduced. The same holds where the
group ran in part and nothing completed it. The hook belongs on the output of every module.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard([a, b]): gradients are wrong or lost when backward reaches the output of a "
    "before that of b"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "The module or modules to shard with FSDP and group together for communication",
    "fully_shard, module",
)
SETUP = (
    "The embedding and the head, or the norm and the head, are one group, and the loss uses an "
    "output of the first beside or in place of that of the last: a tied regulariser, an "
    "auxiliary loss on hidden states."
)
WORKAROUND = "Wrap the modules in groups of their own."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.norm(x)
        return hidden, self.head(hidden)


def train(model):
    hidden, logits = model(torch.arange(4.0))
    (logits.detach().sum() + hidden.square().sum()).backward()  # an auxiliary loss
    return model.norm.weight.grad


mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = Model()
expected = train(copy.deepcopy(model))
fully_shard([model.norm, model.head], mesh=mesh)
fully_shard(model, mesh=mesh)
observed = train(model)
assert observed is not None, f"{expected=}, {observed=}"
torch.testing.assert_close(observed.full_tensor(), expected)
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/issues/183702",
        says="open: a module of the group that runs again later in the iteration",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/180428",
        says="near: merged for 2.13, supports partial forwards and leaves this one",
        query="fully_shard list of modules partial forward gradients None not reduced "
        "pre-backward hook",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:_register_group_forward_hooks",
        """
                return cast_output_dtype(output)
        """,
        """
                state = post_hook.__self__
                if state._training_state != TrainingState.PRE_BACKWARD:
                    output = state._register_pre_backward_hook(output)
                return cast_output_dtype(output)
        """,
    ),
)
