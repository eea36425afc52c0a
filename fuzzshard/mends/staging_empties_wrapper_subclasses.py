"""``async_save`` writes memory that nobody has set in place of parameters of a wrapper subclass.

``StateDictStager._offload_tensor`` (torch/distributed/checkpoint/_state_dict_stager.py) copies the
storage of a tensor. A wrapper subclass has none, so it makes ``x.new_empty(...)`` and copies the
attributes of ``x``. That is right where ``new_empty`` makes another tensor of the subclass, which
then holds the copied attributes. Most subclasses make a plain tensor of it, as they do of every
operation that they do not name: it keeps what its memory happened to hold. A DTensor is staged with
the tensor that it holds, so the same happens to parameters that ``fully_shard`` has sharded.
``torch.distributed.checkpoint.save`` writes the values.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "async_save: values of tensor subclasses are garbage when new_empty returns a plain tensor"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "Asynchronous version of ``save``. This code first de-stages the state_dict on to the "
    "staging storage (defaults to CPU memory), and then calls the `save` in a separate thread.",
    "torch/distributed/checkpoint/state_dict_saver.py, async_save",
)
SETUP = (
    "Parameters are tensors of a wrapper subclass, as those with ``fsdp_pre_all_gather`` in float8 "
    "training are, and checkpoints are written by ``async_save``. Nothing complains, and training "
    "goes on. The run that is resumed from such a checkpoint begins with garbage."
)
WORKAROUND = (
    "Save with ``torch.distributed.checkpoint.save``, or let the subclass keep itself in "
    "``aten.new_empty``."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/NVIDIA/TransformerEngine/pull/2721",
        "the same, mended in one subclass: its new_empty keeps the subclass",
        "async_save StateDictStager tensor subclass wrapper garbage values uninitialized new_empty "
        "float8 checkpoint",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.checkpoint._state_dict_stager:StateDictStager._offload_tensor",
        """
        y = x.new_empty([] if x.data_ptr() != 0 else x.size(), device="cpu")
        """,
        """
        y = x.new_empty([] if x.data_ptr() != 0 else x.size(), device="cpu")
        if type(y) is torch.Tensor and torch.utils._python_dispatch.is_traceable_wrapper_subclass(x):
            names, context = x.__tensor_flatten__()
            inner = {n: self._offload_tensor(getattr(x, n), memo, non_blocking) for n in names}
            y = type(x).__tensor_unflatten__(inner, context, x.size(), x.stride())
            memo[id(x)] = y
            return y
        """,
    ),
)
