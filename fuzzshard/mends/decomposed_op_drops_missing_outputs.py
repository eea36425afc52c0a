"""An operator on DTensors that has no rule of its own, and returns None among its outputs, raises:
the backward of GroupNorm whose input or parameters need no gradient.

``DecompShardingStrategy._propagate_through_decomp``
(``torch/distributed/tensor/_decompositions.py``) leaves out the outputs that are None, so that
specs and outputs are not as many: "For the op aten::native_group_norm_backward, `output_specs`
has 2 outputs which does not equal the number of op outputs 3". Specs may be None; that of
``native_batch_norm_backward``, which has a rule, is.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "DTensor: the backward of GroupNorm raises where its input, weight or bias needs no gradient"
)
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "``DTensor`` (Distributed Tensor) is a subclass of ``torch.Tensor`` that provides single-device "
    "like abstraction to program with multi-device ``torch.Tensor``",
    "DTensor",
)
SETUP = "A model on DTensors begins with a GroupNorm, or has one that is frozen in part."
WORKAROUND = "Let the input of the norm and all of its parameters require gradients."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/184825",
        "near: open, a rule for ``native_group_norm_backward``, with which it needs no "
        "decomposition",
        "GroupNorm DTensor backward fails when input does not require grad, decomposition "
        "sharding propagation None outputs",
        "2026-11-29",
    ),
    Public(
        query="DTensor native_group_norm_backward output_specs has 2 outputs which does not equal "
        "the number of op outputs 3",
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
norm = distribute_module(nn.GroupNorm(2, 8), mesh)
norm(DTensor.from_local(torch.randn(6, 8), mesh)).to_local().sum().backward()
assert norm.weight.grad is not None
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.tensor._decompositions:DecompShardingStrategy._propagate_through_decomp",
        "flat = [p for p in result if p is not None]",
        "flat = [p for p, t in zip(result, output) if p is not None or t is None]",
    ),
)
