"""A recomputation runs a wrapped module on inputs that are not moved to its device.

The outermost wrapped module of a forward moves its inputs to the device
(``FSDPState._root_pre_forward`` in ``torch/distributed/fsdp/_fully_shard/_fsdp_state.py``).
``_pre_forward`` returns before that where a checkpoint around the module recomputes it in
backward, so the module meets the inputs where the caller had them: on the host, while its
parameters are on the device. Inputs of modules within are on the device already.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: inputs stay on the CPU when a checkpoint recomputes the wrapped module"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the unsaved tensors are recomputed by re-invoking",
    "torch.utils.checkpoint.checkpoint",
)
SETUP = (
    "A checkpoint around a whole model is given batches from the host, which ``fully_shard`` "
    "moves to the GPU."
)
WORKAROUND = "Move the inputs before the checkpoint."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/167036",
        "near, open: that forward moves them",
        "FSDP2 fully_shard activation checkpoint recomputation CPU inputs not moved to device "
        "_root_pre_forward PRE_BACKWARD",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._pre_forward",
        """
        # With nested FSDP and multiple forward passes before backward,
        """,
        """
        if self._device.type != "cpu" and (args or kwargs):
            moved_args, moved_kwargs = _to_kwargs(args, kwargs, self._device, False)
            args, kwargs = moved_args[0], moved_kwargs[0]
        # With nested FSDP and multiple forward passes before backward,
        """,
    ),
)
