"""``nn.init.dirac_`` leaves zeros where the ones of a sharded ``DTensor`` belong.

It writes ``tensor[i, i, k] = 1``. To index a dim that is sharded, a ``DTensor`` is gathered, and
what is written to the gathered copy is lost: no error. ``nn.Embedding.reset_parameters`` zeroes
the row of its ``padding_idx`` in the same manner, which stays as it was drawn. The mend writes to
a plain tensor, of which every rank copies its part.
"""

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "nn.init.dirac_ after fully_shard: weights of convolutions are zeros"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Fill the {3, 4, 5}-dimensional input `Tensor` with the Dirac delta function.",
    "nn.init.dirac_",
)
SETUP = (
    "A model is sharded, mostly on the meta device, and gets its values then: ``nn.init.dirac_`` "
    "of a weight of a convolution, or ``reset_parameters()`` of an ``nn.Embedding`` with "
    "``padding_idx``. All but what is indexed on the sharded dim is right: no error."
)
WORKAROUND = (
    "Draw a plain tensor of the whole size on every rank, and copy ``distribute_tensor(plain, "
    "weight.device_mesh, weight.placements, src_data_rank=None)`` to the weight."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))
model = nn.Conv1d(4, 4, 3)
fully_shard(model, mesh=mesh)
nn.init.dirac_(model.weight)
whole = model.weight.full_tensor()
assert torch.equal(whole, nn.init.dirac_(torch.empty(4, 4, 3))), whole
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/147570",
        "near: what is written to a view of a DTensor is lost",
        "DTensor in-place write to indexed view of sharded tensor is lost setitem select fill_ "
        "silently",
        "2026-11-30",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/139735",
        "near: nn.init.zeros_ of rows of a DTensor does nothing",
        "DTensor in-place write to indexed view of sharded tensor is lost setitem select fill_ "
        "silently",
        "2026-11-30",
    ),
)


def apply(patch: Patch) -> None:
    """Writes to a plain tensor first."""
    import torch
    from torch.distributed.tensor import DTensor, Replicate
    from torch.nn import init

    right = init.dirac_

    def dirac_(tensor: Any, groups: int = 1) -> Any:
        if not isinstance(tensor, DTensor) or tensor.is_meta:
            return right(tensor, groups)
        plain = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)
        mesh = tensor.device_mesh
        whole = DTensor.from_local(right(plain, groups), mesh, [Replicate()] * mesh.ndim)
        with torch.no_grad():
            return tensor.copy_(whole)

    patch(init, "dirac_", dirac_)
