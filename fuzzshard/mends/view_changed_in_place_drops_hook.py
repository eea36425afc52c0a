"""Changing the output of a wrapped module in place drops its pre-backward hook, if that output is
a view.

``FSDPState._register_pre_backward_hook`` (``torch/distributed/fsdp/_fully_shard/_fsdp_state.py``)
uses ``Tensor.register_hook``, which stays with the ``grad_fn`` that the tensor has then. A view
that is changed in place gets another one, so nothing unshards the group in backward, which reads
freed memory. Torch 2.13 warns of such outputs.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "An in-place change of an output that is a view drops the pre-backward hook without a word"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Similar backward hooks all-gather parameters and later free parameters and reduce-scatter "
    "gradients",
    "fully_shard",
)
TORCH = Releases(since="2.11", until="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/181832",
        "torch 2.13 warns, by pytorch PR 181850",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._register_pre_backward_hook",
        "t.register_hook(self._pre_backward)",
        """
if t._base is not None:
    import warnings

    cls = ", ".join(type(m).__name__ for m in self._modules) or "?"
    warnings.warn(
        f"FSDP2-wrapped module ({cls}) returned a view tensor. "
        "An in-place op on this view (e.g., `x += y`) will silently "
        "drop the pre-backward hook and skip the all-gather, which "
        "can cause backward to fail or produce wrong gradients.",
        UserWarning,
        stacklevel=2,
    )
t.register_hook(self._pre_backward)
        """,
    ),
)
