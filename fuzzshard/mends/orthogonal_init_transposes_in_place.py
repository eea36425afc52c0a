"""``nn.init.orthogonal_`` raises for a ``DTensor`` with fewer rows than columns.

It transposes by ``t_()``. Of a ``DTensor`` sharded on a dim that torch refuses ("in-place
operations that require placement changes are not supported"). Of a replicated one, which
``new_empty`` makes of a weight with more than two dims, ``t_()`` transposes the local tensor and
leaves the shape of the ``DTensor`` as it was: what follows raises. Torch 2.13 has no ``t_()`` of
DTensors at all. Out of place all is right.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "nn.init.orthogonal_ after fully_shard: RuntimeError when rows are fewer than columns"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Fill the input `Tensor` with a (semi) orthogonal matrix.", "nn.init.orthogonal_"
)
SETUP = (
    "A model is sharded and gets its values then by ``nn.init.orthogonal_``, and some weight has "
    "fewer rows than columns, as any ``nn.Linear`` with fewer features out than in."
)
WORKAROUND = (
    "Draw a plain tensor of the whole size on every rank, and copy ``distribute_tensor(plain, "
    "weight.device_mesh, weight.placements, src_data_rank=None)`` to the weight."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))
model = nn.Linear(8, 4)
fully_shard(model, mesh=mesh)
nn.init.orthogonal_(model.weight)
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/131991",
        "near, closed: operators of orthogonal_ that DTensor had not",
        "DTensor nn.init.orthogonal_ t_() in-place transpose shape fully_shard sharded parameter "
        "init",
        "2026-11-30",
    ),
)
EDITS = (
    Edit("torch.nn.init:orthogonal_", "flattened.t_()", "flattened = flattened.t()"),
    Edit("torch.nn.init:orthogonal_", "q.t_()", "q = q.t()"),
    Edit(
        "torch.nn.init:orthogonal_",
        "tensor.view_as(q).copy_(q)",
        "tensor.copy_(q.reshape(tensor.shape))",
    ),
)
