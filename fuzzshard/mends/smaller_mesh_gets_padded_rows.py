"""With an int ``reshard_after_forward`` the registered parameter has other rows than it says, or
too few.

``FSDPParam.to_sharded_post_forward`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``) cuts
the flat output of the all-gather in equal parts, padding included, and registers a part as
``Shard(0)`` of the parameter on the smaller mesh. ``Shard(0)`` means chunks of the parameter's own
rows, which begin elsewhere where the shard axis, or the int, does not divide them:
``full_tensor()`` after forward is wrong. Where the parameter is sharded along another dim, nothing
is padded, and the rows can reach past the end of the part: a RuntimeError. The parts serve the
next all-gather; the rows have to be copied on their own where they differ.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard(reshard_after_forward=int): full_tensor() is wrong after forward when rows are"
    " padded"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "After forward, the parameters registered to the module depend on to this: [...] the "
    "parameters resharded to the smaller mesh otherwise",
    "fully_shard, reshard_after_forward",
)
SETUP = (
    "``reshard_after_forward`` is the number of GPUs of a node, and a parameter has rows that "
    "the ranks do not divide, as a vocabulary of 50257 has. Whoever reads parameters after a "
    "forward (norms, histograms, a copy for EMA) reads zeros and shifted rows."
)
WORKAROUND = "Call ``reshard()`` on the module before its parameters are read."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 4 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (4,))
torch.manual_seed(0)
model = nn.Embedding(50257, 8)  # four ranks do not divide its rows
expected = model.weight.detach().clone()
fully_shard(model, mesh=mesh, reshard_after_forward=2)
with torch.no_grad():
    model(torch.tensor([0]))  # an evaluation, after which weights are looked at
observed = model.weight.full_tensor().detach()
wrong = (observed != expected).any(dim=1).nonzero().flatten()
assert not len(wrong), f"{len(wrong)} of 50257 rows are wrong, from row {wrong[0]} on\n" + (
    f"row {wrong[0]}: expected {expected[wrong[0]]}\nobserved {observed[wrong[0]]}"
)
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="FSDP2 fully_shard reshard_after_forward int uneven sharding full_tensor wrong "
        "after forward",
        date="2026-11-22",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/118017",
        "near: brought the cut",
        "fully_shard reshard_after_forward int uneven sharding to_sharded_post_forward wrong "
        "full_tensor",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.to_sharded_post_forward",
        """
sharded_post_forward_tensor = torch.as_strided(
    self._sharded_post_forward_param_data,
    size=self.sharded_post_forward_size,
    stride=self.contiguous_sharded_post_forward_stride,
    storage_offset=0,
)
        """,
        """
rows = self._orig_size[0]
even = rows % shard_world_size == 0 and numel == self._orig_size.numel()
first_row = min(-(-rows // shard_world_size) * shard_rank, rows)
sharded_post_forward_tensor = torch.as_strided(
    self._sharded_post_forward_param_data if even else self.all_gather_outputs[0],
    size=self.sharded_post_forward_size,
    stride=self.contiguous_sharded_post_forward_stride,
    storage_offset=0 if even else first_row * self._contiguous_orig_stride[0],
)
if not even:
    sharded_post_forward_tensor = sharded_post_forward_tensor.clone()
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._init_sharded_post_forward_param_metadata",
        """
chunks[mesh_info.shard_mesh_rank],
param_data.size(),
dim=self.fsdp_placement.dim,
        """,
        """
chunks[mesh_info.shard_mesh_rank],
param_data.size(),
dim=0,
        """,
    ),
)
