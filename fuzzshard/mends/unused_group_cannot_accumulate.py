"""A backward that does not reduce fails at a group that was never unsharded.

The end of a backward runs ``FSDPParamGroup.post_backward`` for every group. With
``set_requires_gradient_sync(False)`` that asks each parameter for the gradient of its unsharded
form (``FSDPParam.to_accumulated_grad_if_needed`` in
``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``), which a group that has not run yet does
not have: an AttributeError. The path that reduces asks first whether there is one. Torch 2.15 has
dropped the method.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "set_requires_gradient_sync(False): AttributeError in backward when a group has not run"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "safe to call even when this FSDP parameter group was not used in backward (should be a "
    "no-op)",
    "FSDPParamGroup.post_backward",
)
SETUP = "Microbatches accumulate, and an expert or a branch has not run yet."
WORKAROUND = "Let the first microbatch reach every group, or synchronise in it."
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/194058",
        "closed without a merge; Automodel PR 2744 and verl PR 7475 work around it",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.to_accumulated_grad_if_needed",
        "or self._unsharded_param.grad is None",
        """
or not hasattr(self, "_unsharded_param")
or self._unsharded_param.grad is None
        """,
    ),
)
