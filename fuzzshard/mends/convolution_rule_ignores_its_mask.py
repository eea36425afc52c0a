"""On a mesh of two axes the backward of a convolution of patches raises where its input or weight
needs no gradient.

The rule of ``convolution_backward`` (``convolution_backward_single_dim_strategy`` in
``torch/distributed/tensor/_ops/_conv_ops.py``) gives placements to gradients that ``output_mask``
does not ask for. Where a convolution can also be sharded along the width of its input, as its
stride is as wide as its kernel, that rule is there for replicated inputs, too, and is combined
over two axes with the one that replicates everything, which has no placement for what is not asked
for: "strategy position 0 mixes None with placements across mesh dims". The rules of batch norm and
layer norm look at the mask.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "DTensor: the backward of a patch embedding (Conv2d with stride=kernel_size) raises on a mesh "
    "of two axes"
)
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "``DTensor`` (Distributed Tensor) is a subclass of ``torch.Tensor`` that provides single-device "
    "like abstraction to program with multi-device ``torch.Tensor``",
    "DTensor",
)
SETUP = (
    "A vision transformer on DTensors on a mesh of two axes, whose first layer makes patches of "
    "images."
)
WORKAROUND = (
    "Let the input and the weight of the convolution require gradients, and give what is frozen "
    "to no optimizer."
)
TORCH = Releases(since="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/187383",
        "near: makes the rules of layer norm, RMS norm, batch norm and grid_sample look at the "
        "mask",
        "DTensor convolution_backward strategy position mixes None with placements across mesh "
        "dims",
        "2026-11-29",
    ),
    Public(
        query="expand_to_full_mesh_op_strategy single dim strategy None output mask convolution "
        "2D mesh frozen",
        date="2026-11-29",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_module

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, dist.get_world_size()))
patches = distribute_module(nn.Conv2d(3, 8, kernel_size=2, stride=2), mesh)
images = DTensor.from_local(torch.randn(1, 3, 4, 4), mesh)
patches(images).to_local().sum().backward()
assert patches.weight.grad is not None
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.tensor._ops._conv_ops:convolution_backward_single_dim_strategy",
        "return strategies",
        """
        for each in strategies:
            each[:3] = [p if asked else None for p, asked in zip(each, args_schema[10])]
        return strategies
        """,
    ),
)
