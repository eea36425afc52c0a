"""On a shard axis of size 1 a custom divide factor divides gradients twice.

``foreach_reduce`` (``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``) copies in place
of a reduce-scatter of one rank, and divides by the factor, which that reduce-scatter would have
done. Where sums are forced, or the reduction's dtype is float16 or float64, it would not have:
``_get_gradient_divide_factors`` then returns factors to divide by before and after, which are
applied as well. The gradients are divided by the square of the factor: in float32 only under
``set_force_sum_reduction_for_comms(True)``, which MTIA implies.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "set_gradient_divide_factor: gradients are divided twice when the shard axis has size 1"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "Sets a custom divide factor for the gradient reduction",
    "FSDPModule.set_gradient_divide_factor",
)
SETUP = (
    "Expert parallelism over all ranks: the experts are wrapped on a mesh of one rank, for their "
    "mixed precision and for a divide factor (PR 167178), and reductions are sums, for zero-copy "
    "NCCL or because the device is MTIA, or they are in float16. Experts train with gradients "
    "that are too small by the factor."
)
WORKAROUND = "Where the shard axis has one rank, leave the factor alone and divide the loss by it."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (1,))  # experts that no other rank has a part of
torch.manual_seed(0)
expert = nn.Linear(4, 1)
fully_shard(expert, mesh=mesh)
expert.set_gradient_divide_factor(8.0)
expert.set_force_sum_reduction_for_comms(True)
expert(torch.ones(1, 4)).sum().backward()
expected, observed = torch.ones(1, 4) / 8, expert.weight.grad.to_local()
assert torch.allclose(observed, expected), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/195732",
        "near: open, the memory that the same division takes; says nothing of its value",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/167178",
        "brought the division that is now applied twice",
    ),
    Public(
        query="FSDP2 set_gradient_divide_factor divides twice world size 1 shard mesh size 1; "
        "force_sum_reduction_for_comms expert parallel wrong gradient scale",
        date="2026-11-23",
    ),
    Public(
        query="foreach_reduce gradient_divide_factor applied twice world size 1 "
        "reduce_output.copy_(reduce_scatter_input / gradient_divide_factor) postdivide",
        date="2026-11-24",
    ),
)
_TARGET = "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce"
EDITS = (
    Edit(
        _TARGET,
        "if gradient_divide_factor is not None:",
        "if gradient_divide_factor is not None and postdivide_factor is None:",
        Releases(until="2.15"),
    ),
    Edit(
        _TARGET,
        "if gradient_divide_factor is not None and gradient_divide_factor != 1.0:",
        "if postdivide_factor is None and gradient_divide_factor not in (None, 1.0):",
        Releases(since="2.15"),
    ),
)
