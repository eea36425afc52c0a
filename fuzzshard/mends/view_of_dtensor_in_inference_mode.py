"""Every view of a DTensor raises under ``inference_mode()``, and so does ``state_dict()``.

A view of a normal tensor that is made under ``inference_mode()`` is a normal tensor: autograd has
it share the version counter of its base. ``OpDispatcher.wrap`` in
torch/distributed/tensor/_dispatch.py makes the DTensor around the local result, and the mode makes
that an inference tensor, which has no version counter to set. So ``detach()``, slices,
transpositions and what is made of them fail: ``state_dict()`` and ``load_state_dict()`` of a
sharded model, for one. The DTensor has to be what its local tensor is.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor: RuntimeError when state_dict() or a view is taken under inference_mode"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "A view tensor is an inference tensor if and only if it is a view of an inference tensor.",
    "docs/cpp/source/notes/inference_mode.rst",
)
SETUP = (
    "An evaluation under ``inference_mode()`` ends with a checkpoint, or logs statistics of "
    "``p.detach()``; or weights of a sharded model are refreshed under it."
)
WORKAROUND = "Use ``torch.no_grad()``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

model = nn.Linear(4, 4)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
with torch.inference_mode():
    model(torch.ones(1, 4))  # an evaluation
    model.state_dict()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/NVIDIA/Model-Optimizer/issues/2047",
        says="the same traceback",
        date="2026-11-28",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/issues/164872",
        says="near: open, a slice of any wrapper subclass",
        query='DTensor inference_mode "Cannot set version_counter for inference tensor" view '
        "detach state_dict",
        date="2026-11-26",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/issues/112024",
        says="near: closed, detach() of any wrapper subclass",
        query="FSDP2 state_dict inside torch.inference_mode fails tensor subclass detach wrapper "
        "subclass inference tensor version counter",
        date="2026-11-26",
    ),
    Public(
        link="https://github.com/pytorch/torchtitan/pull/4757",
        says="near: closed, works around it for quantized tensors, whose dispatch does the same",
        query="Cannot set version_counter for inference tensor DTensor fully_shard FSDP2 "
        "inference_mode",
        date="2026-11-26",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._dispatch:OpDispatcher.wrap",
        """
        return dtensor.DTensor(res, spec, requires_grad=res.requires_grad)
        """,
        """
        with torch.inference_mode(res.is_inference()):
            return dtensor.DTensor(res, spec, requires_grad=res.requires_grad)
        """,
    ),
)
