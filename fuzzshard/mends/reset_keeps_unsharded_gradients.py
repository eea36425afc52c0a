"""``reset_iter_state`` keeps the gradients that wait on unsharded parameters for their reduction.

``FSDPParamGroup._reset_iter_state`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``)
drops the partial reduction of HSDP, but not what ``set_requires_gradient_sync(False)`` has left on
the unsharded parameters, nor its copy in ``reduce_dtype``. What an aborted iteration had
accumulated is reduced with the next one. Torch 2.15 clears it.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "reset_iter_state: gradients of the aborted iteration are kept when they were not reduced"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the failed iteration's gradients are lost, including HSDP partial-reduce-accumulation state "
    "and no_sync grad-accumulation state",
    "FSDPModule.reset_iter_state",
)
SETUP = (
    "A training loop that survives failures accumulates under "
    "``set_requires_gradient_sync(False)`` and resets after an aborted iteration."
)
TORCH = Releases(since="2.13", until="2.15")
PUBLIC = (
    Public(query="reset_iter_state gradients unsharded parameter exception", date="2026-11-22"),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._reset_iter_state",
        "self._partial_reduce_output = None",
        """
for fsdp_param in self.fsdp_params:
    fsdp_param.unsharded_accumulated_grad = None
    if hasattr(fsdp_param, "_unsharded_param"):
        fsdp_param._unsharded_param.grad = None
self._partial_reduce_output = None
        """,
    ),
)
