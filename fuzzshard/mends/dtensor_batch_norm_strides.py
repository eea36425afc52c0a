"""The output of batch norm of a transposed DTensor on the CPU says strides that its local tensor
does not have.

``ShardingPropagator._propagate_tensor_meta_non_cached``
(``torch/distributed/tensor/_sharding_prop.py``) runs operators on fake tensors to learn the
strides of their outputs. Those of batch norm there are the strides of its input, while the kernel
of the CPU allocates its result, and the gradient of its input, contiguous or in channels-last
(``batch_norm_cpu`` and ``batch_norm_backward_cpu`` in ``aten/src/ATen/native/Normalization.cpp``).
What asks for a view of the output, such as a linear layer over sequences, then gets one that the
local tensor does not allow.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor: a linear layer fails behind batch norm on the CPU that gets a transposed input"
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise(
    "``DTensor`` (Distributed Tensor) is a subclass of ``torch.Tensor`` that provides single-device "
    "like abstraction to program with multi-device ``torch.Tensor``",
    "DTensor",
)
SETUP = "A model on DTensors has a batch norm over sequences, on the CPU."
WORKAROUND = "``.contiguous()`` on the input of the batch norm."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/192668",
        "near: open, with PR 192681; the same strides in a trace of torch.compile",
        "DTensor batch norm wrong strides CPU transposed input view size is not compatible linear",
        "2026-11-29",
    ),
    Public(
        query="native_batch_norm meta fake tensor stride mismatch with CPU kernel non-contiguous "
        "input",
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
norm, linear = distribute_module(nn.ModuleList([nn.BatchNorm1d(2), nn.Linear(2, 2)]), mesh)
x = DTensor.from_local(torch.randn(2, 3, 2), mesh)
linear(norm(x.transpose(1, 2)).transpose(1, 2))
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.tensor._sharding_prop:"
        "ShardingPropagator._propagate_tensor_meta_non_cached",
        "fake_out = op_schema.op(*fake_args, **fake_kwargs)",
        """
        fake_out = op_schema.op(*fake_args, **fake_kwargs)
        if "batch_norm" in op_schema.op.name() and isinstance(fake_out, tuple):
            like = fake_args["backward" in op_schema.op.name()]
            if like.device.type == "cpu" and fake_out[0] is not None:
                layout = torch._prims_common.suggest_memory_format(like)
                fake_out = (torch.empty_like(fake_out[0], memory_format=layout), *fake_out[1:])
        """,
    ),
)
