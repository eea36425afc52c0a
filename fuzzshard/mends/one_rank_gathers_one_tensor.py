"""On one rank, ``fsdp_post_all_gather`` gets one tensor of the several that were to be gathered.

``FSDPParamGroup.wait_for_unshard`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``)
gathers nothing where the shard axis has one rank. It copies what was to be gathered into what was
gathered, and copies the first tensor alone. ``_unflatten_all_gather_outputs`` zips what there is
with the sizes of all, so ``fsdp_post_all_gather`` is given a tuple that is too short. On two ranks
it has them all.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: fsdp_post_all_gather gets one of several tensors when the mesh has one rank"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "some may have multiple all-gather inputs/outputs (e.g. quantized data and scales)",
    "torch/distributed/fsdp/_fully_shard/_fsdp_param.py, [Note: FSDP tensors]",
)
SETUP = (
    "Parameters of a tensor subclass gather two tensors, quantized data and scales, and the script "
    "runs on one rank: a test on one GPU, or HSDP with a shard axis of one. The first forward "
    "raises in ``fsdp_post_all_gather``."
)
WORKAROUND = "Return one tensor from ``fsdp_pre_all_gather`` where ``mesh.size()`` is 1."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import types

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
    return (self.abs(), self.sign()), None


def fsdp_post_all_gather(self, outputs, metadata, param_dtype, *, out=None):
    size, sign = outputs
    values = size * sign
    return values, (values,)


model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
for shard in [p._local_tensor for p in model.parameters()]:
    shard.fsdp_pre_all_gather = types.MethodType(fsdp_pre_all_gather, shard)
    shard.fsdp_post_all_gather = types.MethodType(fsdp_post_all_gather, shard)
model(torch.ones(2, 4))
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/197999",
        "the same: open, copies all tensors",
        "fully_shard world size 1 fsdp_pre_all_gather fsdp_post_all_gather multiple all-gather "
        "inputs single rank init_unsharded_param",
        "2026-11-26",
    ),
)
_TARGET = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.wait_for_unshard"
EDITS = (
    Edit(
        _TARGET,
        """
                all_gather_input = fsdp_param.all_gather_inputs[0]
        """,
        """
                all_gather_input, *others = fsdp_param.all_gather_inputs
        """,
    ),
    Edit(
        _TARGET,
        """
                    [all_gather_input.numel()],
                    [all_gather_input.dtype],
        """,
        """
                    [t.numel() for t in (all_gather_input, *others)],
                    [t.dtype for t in (all_gather_input, *others)],
        """,
    ),
    Edit(
        _TARGET,
        """
                tensor = fsdp_param.all_gather_outputs[0]
        """,
        """
                for tensor, other in zip(fsdp_param.all_gather_outputs[1:], others):
                    alloc_storage(tensor)
                    counted = () if tensor.is_inference() else (tensor,)
                    with torch.autograd._unsafe_preserve_version_counter(counted):
                        tensor.copy_(other)
                tensor = fsdp_param.all_gather_outputs[0]
        """,
    ),
)
