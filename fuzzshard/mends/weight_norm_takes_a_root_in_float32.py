"""On CUDA ``torch._weight_norm`` of float64 tensors is as exact as float32.

The kernels in aten/src/ATen/native/cuda/WeightNorm.cu add squares up in float64 and take their root
with ``sqrtf``, which rounds to float32. The decomposition that Inductor compiles takes it in
float64, as the CPU does, so a compiled model differs from the same model eagerly: by 4e-8 of a
weight on an H200.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "weight_norm: float64 weights on CUDA are wrong after eight digits"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    r"\mathbf{w} = g \dfrac{\mathbf{v}}{\|\mathbf{v}\|}",
    "torch.nn.utils.parametrizations.weight_norm",
)
SETUP = "A module in float64 on CUDA has a weight under weight_norm along its first or last dim."
WORKAROUND = (
    "Compute ``g * v / torch.norm_except_dim(v, 2, dim)`` in a parametrization of your own."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import copy

import torch
from torch import nn

torch.manual_seed(0)
module = nn.utils.parametrizations.weight_norm(nn.Linear(17, 4).double())
on_cuda = copy.deepcopy(module).cuda()
error = ((on_cuda.weight.cpu() - module.weight) / module.weight).abs().max().item()
assert error < 1e-12, f"off by {error} of the weight on CUDA"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/191141",
        "near: open, what the decomposition does with the norm of half precision",
        "weight_norm CUDA float64 double precision wrong low precision float32 accuracy "
        "_weight_norm_interface",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.nn.utils.parametrizations:_WeightNorm.forward",
        """
        return torch._weight_norm(weight_v, weight_g, self.dim)
        """,
        """
        if weight_v.is_cuda and weight_v.dtype == torch.float64:
            return weight_v * (weight_g / torch.norm_except_dim(weight_v, 2, self.dim))
        return torch._weight_norm(weight_v, weight_g, self.dim)
        """,
    ),
)
