"""A sum along a negative dim of a DTensor, from its beginning to each element, is one of each shard.

``scan_strategy`` (torch/distributed/tensor/_ops/_math_ops.py) asks for a tensor that is not sharded
along the dim, and compares dims with it as the caller gave it: no dim is -1. Torch 2.14 normalises
it.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor: cumsum(-1) of a tensor that is sharded along that dim is wrong, without an error"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "DTensor overrides the PyTorch operators to perform sharded computation and issue "
    "communications whenever necessary.",
    "torch.distributed.tensor.DTensor",
)
SETUP = (
    "A model on DTensors uses ``cumsum``, ``cumprod`` or ``logcumsumexp`` along a negative dim "
    "that is sharded, as positions that are counted in a mask are under sequence parallelism."
)
WORKAROUND = "Use torch 2.14, or count the dim from the front."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
plain = torch.arange(1.0, 5.0)
observed = distribute_tensor(plain, mesh, [Shard(0)]).cumsum(-1).full_tensor()
expected = plain.cumsum(-1)
dist.destroy_process_group()
assert torch.equal(observed, expected), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.13", until="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/151071",
        "brought: the rule of cumsum",
        "DTensor cumsum negative dim wrong result sharded scan_strategy normalize dim",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._ops._math_ops:scan_strategy",
        "input_strategy, [dim], keep_dim=True, reduction_linear=False",
        """
        input_strategy,
        [normalize_dim(dim, input_strategy.ndim)],
        keep_dim=True,
        reduction_linear=False,
        """,
    ),
)
