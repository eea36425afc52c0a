"""FSDP1 does not unshard a unit in backward whose last call had no differentiable output.

Every forward of a unit begins with ``handle._needs_pre_backward_unshard = False``, and sets it
again only where an output requires a gradient (``_register_pre_backward_hooks`` in
``torch/distributed/fsdp/_runtime_utils.py``). Where a frozen unit is called first with an input
that requires a gradient and then with one that does not, the hook of the first call's output finds
that nothing needs to be unsharded. Backward then reads a parameter whose storage was freed: a
RuntimeError. The end of every backward sets the flag back anyway.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "FSDP1: backward reads freed parameters when the last call of a frozen unit needs no gradient"
)
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Since these handles' `FlatParameter`s participated in a forward, we conservatively assume that "
    "they will be used in the backward",
    "torch/distributed/fsdp/_runtime_utils.py, _register_pre_backward_hooks; plain autograd allows "
    "it",
)
WORKAROUND = "Call the frozen network on the target first, or under ``no_grad()``."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/136861",
        "closed: near, two forwards before two backwards; the same flag is cleared by the end of "
        "the first backward",
        "FSDP1 setStorage out of bounds for storage of size 0 frozen module called twice "
        "_needs_pre_backward_unshard",
        "2026-11-24",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/117510",
        "closed: near, a frozen unit whose output needs no gradient is resharded without having "
        "been unsharded",
        "FullyShardedDataParallel same module forward twice second call detached input frozen "
        "parameters backward storage of size 0",
        "2026-11-24",
    ),
    Public(
        query="FSDP1 frozen perceptual loss network called twice setStorage out of bounds storage "
        "of size 0 backward",
        date="2026-11-24",
    ),
    Public(
        query="FullyShardedDataParallel _needs_pre_backward_unshard reset second forward no grad",
        date="2026-11-24",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/101982",
        "near: merged, shards frozen units again in backward; a comment of 2023 has a crash of "
        "frozen parameters",
        "FSDP use same frozen module on input requiring grad and on detached input, backward fails "
        "setStorage size 0",
        "2026-11-24",
    ),
    Public(
        query="FSDP reward model frozen DPO reference called with no_grad after grad forward, "
        "parameter storage freed in backward",
        date="2026-11-24",
    ),
)
SETUP = (
    "A frozen network in FSDP1, each layer of it a unit, computes a perceptual loss: it is called "
    "on an output of the model, and then on a target, without ``no_grad()``. Calling it on the "
    "target first, or under ``no_grad()``, avoids the error."
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_register_pre_backward_hooks",
        """
        handle._needs_pre_backward_unshard = False
        """,
        """
        # an earlier call may need it: `_needs_pre_backward_unshard` stays
        """,
    ),
)
