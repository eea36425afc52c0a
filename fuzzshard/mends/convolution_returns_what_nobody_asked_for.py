"""On DTensors the backward of a convolution on the CPU raises where its weight is frozen and its
bias is not.

The kernel returns a gradient of the weight although ``output_mask`` does not ask for it. That of
fake tensors, from which ``ShardingPropagator`` learns what is returned, does not; so there is no
spec for it, and ``OpDispatcher.wrap`` (``torch/distributed/tensor/_dispatch.py``) takes it for a
scalar: "output tensor should be scalar!". Nobody reads it.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "DTensor: the backward of a convolution on the CPU raises when the weight is frozen and the "
    "bias is not"
)
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise(
    "``DTensor`` (Distributed Tensor) is a subclass of ``torch.Tensor`` that provides single-device "
    "like abstraction to program with multi-device ``torch.Tensor``",
    "DTensor",
)
SETUP = "Biases of a model on DTensors are trained alone (BitFit), and it has a convolution."
WORKAROUND = "Let the weight require gradients, and give it to no optimizer."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/172302",
        "near: closed, the same of the kernel of XPU",
        'DTensor convolution_backward frozen weight "output tensor should be scalar"',
        "2026-11-29",
    ),
    Public(
        query="DTensor conv backward output_mask weight requires_grad False bias gradient "
        "AssertionError distributed tensor",
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
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
conv = nn.Conv1d(4, 4, 3)
conv.weight.requires_grad_(False)
distribute_module(conv, mesh)
conv(DTensor.from_local(torch.randn(2, 4, 5), mesh)).to_local().sum().backward()
assert conv.bias.grad is not None
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.tensor._dispatch:OpDispatcher.wrap",
        'raise AssertionError("output tensor should be scalar!")',
        "return None",
    ),
)
