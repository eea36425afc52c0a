"""``nn.Module.to`` raises where two recurrent modules share a weight that is a ``DTensor``.

``Module._apply`` exchanges a parameter of a wrapper subclass with its converted copy by
``torch.utils.swap_tensors``, which refuses tensors that something has a weak reference of.
``RNNBase`` (``torch/nn/modules/rnn.py``) keeps weak references of its weights to see whether they
were replaced, and its own ``_apply`` drops them first, but not those of another ``nn.LSTM`` that
has the same weight: "Couldn't swap LSTM.weight_hh_l0". A plain model converts without an error.
``_flat_weights`` beside these references holds the same weights, so they need not be weak.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "nn.LSTM: Module.to raises when two recurrent modules share a weight that is a DTensor"
COMPONENT = "other"
WEIGHT = "exotic"
CONTRACT = Promise("Move and/or cast the parameters and buffers.", "nn.Module.to")
SETUP = (
    "Two ``nn.LSTM`` share ``weight_hh_l0``, ``fully_shard`` has both in one group, and "
    "``model.to`` casts the model after it."
)
WORKAROUND = "Cast the model before ``fully_shard``."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/187008",
        "near: the same error where something outside torch holds the reference",
        "apply Couldn't swap LSTM.weight_hh_l0 swap_tensors weakref",
        "2026-11-27",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/122800",
        "near: made RNNBase drop its own references before; those of another module stay",
        "Cannot swap t1 because it has weakref associated with it nn.LSTM tied weights DTensor",
        "2026-11-27",
    ),
)
_EDIT = (
    "weakref.ref(w) if w is not None else None for w in self._flat_weights",
    "(lambda w=w: w) if w is not None else None for w in self._flat_weights",
)
EDITS = (Edit("torch.nn.modules.rnn:RNNBase._init_flat_weights", *_EDIT),)
