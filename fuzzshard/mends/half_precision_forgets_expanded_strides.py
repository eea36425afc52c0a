"""The sum of an expanded and a transposed DTensor in half precision says strides that its local
tensor does not have.

``ShardingPropagator`` runs operators on fake tensors to learn the strides of their outputs. Where
the fast path of fake tensors for elementwise operators does not know them
(``make_fast_binary_impl`` in ``torch/_subclasses/fake_impls.py``), it asks ``torch._refs``, which
first converts half precision to float32 (``_maybe_convert_to_dtype`` in
``torch/_prims_common/wrappers.py``). A conversion makes an expanded tensor contiguous, so that its
strides win over those of the other one. Kernels convert no tensors, and take the strides of the
one that is not expanded. What asks for a view of the output, such as the backward of a linear
layer, then gets one that the local tensor does not allow.
"""

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = (
    "DTensor: a backward in half precision fails where an expanded gradient meets a transposed one"
)
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise(
    "``DTensor`` (Distributed Tensor) is a subclass of ``torch.Tensor`` that provides single-device "
    "like abstraction to program with multi-device ``torch.Tensor``",
    "DTensor",
)
SETUP = (
    "A model on DTensors in half precision, whose hidden states are summed for a second loss, "
    "and go through a convolution over their sequence."
)
WORKAROUND = "Take the mean of the hidden states, times their number: its gradient is dense."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query="FakeTensor wrong output strides binary op half precision bfloat16 expanded tensor "
        "stride 0 add CPU mismatch eager",
        date="2026-11-29",
    ),
    Public(
        query='DTensor backward "view size is not compatible" bfloat16 gradient accumulation '
        "transposed expanded sum",
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
layers = nn.ModuleList([nn.Linear(2, 2), nn.Conv1d(2, 2, 1)]).bfloat16()
linear, convolution = distribute_module(layers, mesh)
x = torch.randn(2, 3, 2, dtype=torch.bfloat16)
hidden = linear(DTensor.from_local(x, mesh))
output = convolution(hidden.transpose(1, 2))
(output.sum() + hidden.sum()).backward()
dist.destroy_process_group()
"""


def apply(patch: Patch) -> None:
    """Convert one element of what is expanded."""
    import torch
    from torch._prims_common import wrappers

    convert: Any = wrappers._maybe_convert_to_dtype

    def keeping(a: Any, dtype: torch.dtype) -> Any:
        if not isinstance(a, torch.Tensor) or a.dtype == dtype:
            return convert(a, dtype)
        expanded = [isinstance(stride, int) and stride == 0 for stride in a.stride()]
        if not any(expanded):
            return convert(a, dtype)
        one = a[tuple(slice(1) if each else slice(None) for each in expanded)]
        return convert(one, dtype).expand(a.shape)

    patch(wrappers, "_maybe_convert_to_dtype", keeping)
