"""A checkpoint saves the random state of the devices of its arguments, and not that of the current
one.

The note of ``torch.utils.checkpoint`` names both, ``get_device_states``
(``torch/utils/checkpoint.py``) looks at the arguments alone. Where these are on the host and the
module moves them, or ``replicate`` does so after the hook of a checkpoint around the root, the
dropout of the recomputation draws another mask than the forward.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "torch.utils.checkpoint: a recomputation draws other dropouts when the arguments are on the"
    " CPU"
)
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "[current device + devices of Tensor arguments]", "docs/source/checkpoint.md, note"
)
SETUP = (
    "A checkpoint around a whole model is given batches from the host, which the model moves to"
    " the GPU itself. Its gradients are those of another dropout than its loss."
)
WORKAROUND = "Move the inputs before the checkpoint."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/14518",
        "near: merged; its description says that the current device is saved, too",
        "torch.utils.checkpoint preserve_rng_state CPU inputs moved to GPU inside module dropout "
        "mask differs in recomputation get_device_states",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.utils.checkpoint:get_device_states",
        """
        device_module = _get_device_module(_infer_device_type(*args))
        """,
        """
        device_module = _get_device_module(_infer_device_type(*args))
        if not fwd_device_ids and getattr(device_module, "_initialized", False):
            fwd_device_ids.append(device_module.current_device())
        """,
    ),
)
