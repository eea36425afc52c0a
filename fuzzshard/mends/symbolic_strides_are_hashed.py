"""Compiling a tensor-parallel module fails when an input of the same sizes has other strides.

When an input comes with other strides, dynamo compiles its frame once more with symbolic strides.
The sizes stay numbers, so a DTensor of it has a spec with symbols in its strides only. The
dispatcher of DTensor keeps what it knows of sharding in a cache, whose key hashes sizes and
strides. It leaves the cache aside where a spec has symbols, which have no hash, but looks for them
in the sizes alone (``dtensor_spec_has_symints`` in ``torch/csrc/autograd/python_variable.cpp``).
So the first operation on such a DTensor raises. It has to look at the strides, too. That is C++;
here such a spec is a key that equals nothing but itself, so nothing is found by it.
"""

from __future__ import annotations

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "torch.compile: TypeError of a DTensor when an input comes again with other strides"
COMPONENT = "compile"
WEIGHT = "bug"
CONTRACT = Promise(
    "By default (None), we automatically detect if dynamism has occurred and compile a more "
    "dynamic kernel upon recompile.",
    "torch.compile, dynamic",
)
SETUP = (
    "A tensor-parallel module is compiled; some inputs are contiguous, others of the same shape "
    "are transposed or slices."
)
WORKAROUND = "Call ``contiguous()`` on the inputs, or compile with ``dynamic=False``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

model = parallelize_module(nn.Linear(8, 8), init_device_mesh("cpu", (2,)), ColwiseParallel())
model.compile(backend="aot_eager")
model(torch.ones(2, 2, 8, requires_grad=True))
model(torch.ones(2, 8, 2, requires_grad=True).transpose(1, 2))
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/185190",
        "closed, 'Make constant SymInts hashable', hashes symbols of a DTensorSpec; not in torch "
        "2.15",
        "unhashable type: non-nested SymInt DTensorSpec __hash__",
        "2026-11-28",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/152963",
        "near: open, DTensor and dynamic shapes at large; names no strides",
        "compile tensor parallel hook DTensor output automatic dynamic shapes recompile unhashable "
        "type SymInt detach sharding propagation",
        "2026-11-28",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/159590",
        "near: closed, the same error of symbolic sizes",
        "DTensor torch.compile dynamic shapes backward tangent detach TypeError unhashable SymInt "
        "coerce_tangent_and_suggest_memory_format",
        "2026-11-28",
    ),
)


def apply(patch: Patch) -> None:
    """Hashes and compares a spec by its identity where only its strides are symbolic."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    hashed, equals = DTensorSpec.__hash__, DTensorSpec.__eq__

    def __hash__(self: Any) -> int:
        return id(self) if _has_symbolic_strides(self) else hashed(self)

    def __eq__(self: Any, other: object, /) -> bool:
        if _has_symbolic_strides(self) or _has_symbolic_strides(other):
            return self is other
        return equals(self, other)

    patch(DTensorSpec, "__hash__", __hash__)
    patch(DTensorSpec, "__eq__", __eq__)


def _has_symbolic_strides(spec: Any) -> bool:
    """Whether it has symbols, and in its strides only."""
    import torch

    def symbolic(numbers: Any) -> bool:
        return any(isinstance(number, torch.SymInt) for number in numbers)

    meta = getattr(spec, "tensor_meta", None)
    return meta is not None and symbolic(meta.stride) and not symbolic(meta.shape)
