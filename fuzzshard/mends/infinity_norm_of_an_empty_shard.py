"""``clip_grad_norm_`` with the infinity norm raises on ranks that have no part of a gradient.

``_get_total_norm`` (torch/nn/utils/clip_grad.py) takes the norm of every gradient, which DTensor
does shard by shard. ``fully_shard`` leaves the last ranks empty shards of a parameter that has
fewer rows than there are ranks. There ``torch._foreach_norm`` and ``torch.linalg.vector_norm``
raise, as the infinity norm has no identity. The other ranks go on to the all-reduce and wait. The
norm of an empty shard is to be zero, as it is for other norms.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "clip_grad_norm_(norm_type=inf): some ranks raise and others hang when fully_shard leaves them "
    "an empty shard"
)
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "type of the used p-norm. Can be ``'inf'`` for infinity norm.",
    "torch.nn.utils.clip_grad_norm_, norm_type",
)
SETUP = (
    "Gradients are clipped by their largest element, and some parameter has fewer rows than there "
    "are ranks: a head with one output, a router, a scale."
)
WORKAROUND = "Clip by another norm, or by value (``clip_grad_value_``)."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

model = nn.Linear(4, 1)  # a head with one output
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
model(torch.ones(1, 4)).sum().backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type="inf")
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/173238",
        says="brought the check that raises",
        date="2026-11-28",
    ),
    Public(
        link="https://github.com/meta-pytorch/torchrec/pull/3809",
        says="near: closed, filters empty tensors in an optimizer of its own",
        query='clip_grad_norm_ norm_type inf fully_shard DTensor empty shard "cannot compute" '
        "infinity norm empty tensor hang",
        date="2026-11-26",
    ),
)
_TARGET = "torch.nn.utils.clip_grad:_get_total_norm"
EDITS = (
    Edit(
        _TARGET,
        """
        norms: list[Tensor] = []
        """,
        """
        from torch.distributed.tensor import DTensor

        def filled(tensor: Tensor) -> Tensor:
            if not isinstance(tensor, DTensor) or tensor._local_tensor.numel():
                return tensor
            local = tensor._local_tensor
            zero = local.new_zeros([1] * local.ndim)
            return DTensor(zero, tensor._spec, requires_grad=False)

        norms: list[Tensor] = []
        """,
    ),
    Edit(
        _TARGET,
        """
        norms.extend(torch._foreach_norm(device_tensors, norm_type))
        """,
        """
        norms.extend(torch._foreach_norm([filled(g) for g in device_tensors], norm_type))
        """,
    ),
    Edit(
        _TARGET,
        """
        [torch.linalg.vector_norm(g, norm_type) for g in device_tensors]
        """,
        """
        [torch.linalg.vector_norm(filled(g), norm_type) for g in device_tensors]
        """,
    ),
)
