"""FSDP1's hooks that compress gradients raise on the CPU.

``_decompress`` in ``torch/distributed/algorithms/_comm_hooks/default_hooks.py`` casts a gradient
back, and tells the allocator that a stream still reads what it was cast from: ``record_stream``
with the current stream of the device. The CPU has no such stream, and ``record_stream`` does not
take what ``torch.cpu.current_stream()`` returns. ``allreduce_hook`` and ``reduce_scatter_hook``
work there.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: fp16_compress_hook and bf16_compress_hook raise on the CPU"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Once post-division is done, compressed gradients are casted back to parameters' precision.",
    "torch/distributed/algorithms/_comm_hooks/default_hooks.py, fp16_compress_hook",
)
SETUP = (
    "FullyShardedDataParallel on gloo and the CPU, with a communication hook that compresses "
    "gradients."
)
WORKAROUND = "Register a hook of your own that casts, or MixedPrecision(reduce_dtype=...)."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("gloo")
fsdp = FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu"))
state = default_hooks.LowPrecisionState(dist.group.WORLD)
fsdp.register_comm_hook(state, default_hooks.fp16_compress_hook)
fsdp(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="FSDP fp16_compress_hook bf16_compress_hook CPU gloo record_stream unknown "
        "parameter type _decompress",
        date="2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.algorithms._comm_hooks.default_hooks:_decompress",
        "orig_grad_data.record_stream(backend.current_stream())  # type: ignore[arg-type]",
        """
        if device_type != "cpu":
            orig_grad_data.record_stream(backend.current_stream())
        """,
    ),
)
