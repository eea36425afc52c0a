"""A state dict has buffers in low precision where their unit has no parameters.

The first forward casts buffers to ``buffer_dtype``. ``_common_unshard_post_state_dict_hook`` in
``torch/distributed/fsdp/_state_dict_utils.py`` casts those of a state dict back, but returns early
for a unit without parameters of its own: one whose parameters all belong to units below it, as the
root often has none. Its buffers stay in low precision, unless a unit above it casts them.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: state_dict() has buffers in low precision if the root has no parameters of its own"
COMPONENT = "FSDP1"
WEIGHT = "bug"
CONTRACT = Promise(
    "For model checkpointing, the buffers are saved in full precision except for "
    "``LOCAL_STATE_DICT``.",
    "torch.distributed.fsdp.MixedPrecision, buffer_dtype",
)
SETUP = (
    "All blocks of a model are units, and ``MixedPrecision`` has a ``buffer_dtype``. A checkpoint "
    "has buffers of bfloat16, such as those of a layer without parameters."
)
WORKAROUND = "Cast the buffers of the state dict before it is saved."
EXAMPLE = """
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

dist.init_process_group("gloo")
options = {
    "device_id": torch.device("cpu"),
    "mixed_precision": MixedPrecision(buffer_dtype=torch.bfloat16),
}
model = nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2), **options))
model.register_buffer("scale", torch.ones(2))
fsdp = FullyShardedDataParallel(model, **options)
fsdp(torch.ones(1, 2))
dtype = fsdp.state_dict()["scale"].dtype
assert dtype == torch.float32, f"the buffer is saved in {dtype}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/93391",
        "closed, near: of several buffers one alone was cast back; units without parameters "
        "still cast none",
        "FSDP state_dict buffer_dtype mixed precision buffers not saved in full precision module "
        "without parameters",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._state_dict_utils:_common_unshard_post_state_dict_hook",
        """
        if not state_dict or not _has_fsdp_params(fsdp_state, module):
        """,
        """
        if not state_dict:
        """,
    ),
    Edit(
        "torch.distributed.fsdp._state_dict_utils:_common_unshard_post_state_dict_hook",
        """
        state_dict.pop(f"{prefix}{FLAT_PARAM}")
        """,
        """
        state_dict.pop(f"{prefix}{FLAT_PARAM}", None)
        """,
    ),
)
