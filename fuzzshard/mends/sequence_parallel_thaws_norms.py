"""``SequenceParallel`` makes frozen parameters trainable.

``SequenceParallel._replicate_module_fn`` (``torch/distributed/tensor/parallel/style.py``)
registers each parameter anew as ``torch.nn.Parameter(DTensor.from_local(...))``, which requires a
gradient whatever the parameter did. ``ColwiseParallel``, ``RowwiseParallel`` and
``distribute_module`` pass ``requires_grad=param.requires_grad`` (PR 171709).
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "SequenceParallel: frozen parameters of norms become trainable"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "SequenceParallel replicates a compatible ``nn.Module`` parameters and runs the sharded "
    "computation with",
    "SequenceParallel",
)
SETUP = (
    "A model with frozen norms, as for LoRA, is parallelised by a plan that has "
    "``SequenceParallel()`` for them."
)
WORKAROUND = "Freeze the norms once more after ``parallelize_module``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(nn.LayerNorm(4)).requires_grad_(False)
parallelize_module(model, mesh, {"0": SequenceParallel()})
trainable = [name for name, p in model.named_parameters() if p.requires_grad]
assert not trainable, f"frozen before parallelize_module, trainable after it: {trainable}"
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/171709",
        "near, merged: the same in distribute_module, ColwiseParallel and RowwiseParallel; "
        "SequenceParallel was left out",
        "SequenceParallel requires_grad frozen parameters become trainable; LoRA sequence parallel "
        "frozen LayerNorm requires_grad parallelize_module DTensor",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor.parallel.style:SequenceParallel._replicate_module_fn",
        """
DTensor.from_local(param, device_mesh, [Replicate()], run_check=False)
        """,
        """
DTensor.from_local(param, device_mesh, [Replicate()], run_check=False),
requires_grad=param.requires_grad,
        """,
    ),
)
