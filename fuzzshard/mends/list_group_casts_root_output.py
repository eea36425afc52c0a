"""The output of the root is cast to the output dtype of a list group that ran in part.

``FSDPState._force_complete_incomplete_states``
(torch/distributed/fsdp/_fully_shard/_fsdp_state.py) ends the forward of groups of which not every
module has run. It is called in the post-forward of the root, and casts the output of the root to
the ``output_dtype`` of each of these groups. The outputs of their own modules have been cast
already. A recomputation does not cast, so a checkpoint around the root finds other dtypes.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard([a, b]): the output of the root gets the group's output_dtype when a runs "
    "without b"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "``mp_policy.cast_forward_inputs`` and ``mp_policy.output_dtype`` both apply per module in "
    "the group",
    "fully_shard",
)
SETUP = (
    "The final norm and the head are one group with its own ``output_dtype``, such as float32 "
    "for the logits, and a forward only needs the hidden states."
)
WORKAROUND = "Wrap each of the modules in a group of its own."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x, only_hidden):
        hidden = self.norm(self.body(x))
        return hidden.double() if only_hidden else self.head(hidden)


mesh = init_device_mesh("cpu", (2,))
model = Model()
float32 = MixedPrecisionPolicy(output_dtype=torch.float32)
fully_shard([model.norm, model.head], mesh=mesh, mp_policy=float32)  # of these two modules
fully_shard(model, mesh=mesh)
expected, observed = torch.float64, model(torch.ones(1, 4), only_hidden=True).dtype
assert observed == expected, f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/180428",
        says="near: merged, introduced it",
        query=(
            "register_fsdp_forward_method fully_shard group of modules post_forward output_dtype "
            "cast root output"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._force_complete_incomplete_states",
        """
        output = state._cast_output_dtype(output)
        state._modules_to_run_forward.clear()
        """,
        """
        state._modules_to_run_forward.clear()
        """,
    ),
)
