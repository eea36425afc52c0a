"""``state_dict()`` hands out the unsharded copy of a tied parameter, and frees it right after.

A state dict has to hold sharded parameters. ``_register_state_dict_hooks``
(``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``) therefore hooks modules, which
reshard their group before their own entries are saved. Of the modules that share a parameter it
hooks the one that ``fully_shard`` was given first. Where another one of them comes earlier in the
model, that one's entry is saved while the group is unsharded: a plain tensor in place of a
DTensor. Then the hook of the later module frees its memory. Reading the entry reads freed memory:
on the CPU the process dies. All modules that share the parameter have to be hooked.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: state_dict() holds freed memory when a list names the later of two tied modules "
    "first"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "this makes it possible for trainer to call `sd = model.state_dict()` before the training loop "
    "and use `sd` without calling .state_dict() per iteration",
    "_fsdp_param.py, reset_sharded_param",
)
SETUP = (
    "An output layer and the embedding that it is tied to are one group, "
    "``fully_shard([model.output, model.embedding], reshard_after_forward=False)``. Whoever takes "
    "``model.state_dict()`` after an evaluation gets an entry for the embedding that is no DTensor "
    "and has no memory: saving it crashes, or writes whatever is there."
)
WORKAROUND = (
    "Name modules in the list in the order in which the model registers them, or call "
    "``model.reshard()`` before ``model.state_dict()``."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 4)
        self.output = nn.Linear(4, 4, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.embedding(tokens))


mesh = init_device_mesh("cpu", (2,))
model = Model()
fully_shard([model.output, model.embedding], mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh)
with torch.no_grad():
    model(torch.tensor([0, 1]))
state = model.state_dict()
dist.destroy_process_group()
for name, tensor in state.items():
    assert isinstance(tensor, DTensor), f"{name}: {type(tensor).__name__}, not a DTensor"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="fully_shard state_dict tied parameter unsharded freed storage list of modules state "
        "dict hook shared module segfault; FSDP2 tied weights model.state_dict() after forward "
        "returns unsharded tensor with empty storage",
        date="2026-11-25",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group"
        ":FSDPParamGroup._register_state_dict_hooks",
        """
        fsdp_param._module_info.module for fsdp_param in self.fsdp_params
        """,
        """
        module
        for fsdp_param in self.fsdp_params
        for module in (fsdp_param._module_info.module, *fsdp_param._module_info.shared_modules)
        """,
    ),
)
