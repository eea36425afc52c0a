"""FSDP1's pre-backward hook stays behind where an output is a view that is changed in place.

``_register_pre_backward_hooks`` in ``torch/distributed/fsdp/_runtime_utils.py`` registers a hook
on each output. Where that is a view, changing it in place gives it a new history (``CopySlices``
of its base), and the hook stays with the old one, which no gradient comes to. The unit's
pre-backward does not run: its post-backward fails in the state IDLE, or its parameters are gone.
The base of the view, as it was before the change, is part of the new history, so a hook on it runs
before anything of the unit.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: backward fails when an output that is a view is changed in place"
COMPONENT = "FSDP1"
WEIGHT = "limitation"
CONTRACT = Promise(
    "pre-backward hooks registered to tensors that require gradients",
    "torch/distributed/fsdp/_runtime_utils.py, _register_pre_backward_hooks; plain autograd "
    "allows it",
)
SETUP = (
    "A unit returns a slice or a ``view`` of what it has computed, and the next operation is in"
    " place: ``relu_``, ``masked_fill_``, ``x[...] = 0``."
)
WORKAROUND = "Change a copy: ``output.clone()``, or the operation that is not in place."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/181832",
        "closed, near: the same of fully_shard, which warns since (PR 181850)",
        "FSDP output view modified in place pre-backward hook not called register_hook grad_fn",
        "2026-11-23",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/148756",
        "open: near, the same ValueError with FSDP1, without a cause",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_register_pre_backward_hooks",
        """
        if t.requires_grad:
        """,
        """
        if t.requires_grad:
            # A view that is changed in place leaves its hooks behind
            if t._base is not None and t._base.grad_fn is not None:
                t._base.register_hook(
                    functools.partial(_pre_backward_hook, state, module, handle)
                )
        """,
    ),
)
