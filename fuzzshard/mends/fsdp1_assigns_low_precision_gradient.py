"""FSDP1 assigns a gradient in low precision to another name of its parameter.

With a ``param_dtype`` what accumulates under ``no_sync()`` is kept in that dtype.
``_use_sharded_grad_views`` in ``torch/distributed/fsdp/_flat_param.py`` hides this from each
parameter's check of its gradient, by setting the data of a gradient that is there, but assigns the
gradient itself where the parameter has another name in the unit. With ``use_orig_params`` and
``NO_SHARD``, or what a group of one rank makes of the others, the next forward fails with a
RuntimeError of dtypes. ``_use_unsharded_grad_views`` does the same for both names already.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1.no_sync: the next forward fails when a parameter has two names and a param_dtype"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "FSDP preserves the original parameter variables", "FullyShardedDataParallel, use_orig_params"
)
SETUP = (
    "A model with tied weights and mixed precision accumulates under ``no_sync()``, on one "
    "rank, as in debugging, or with ``NO_SHARD``."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch PR 91193, which makes use_orig_params, no_sync() and mixed precision "
        "work together",
        query="FSDP mixed precision shared parameter assigned grad has data of a different type "
        "use_orig_params NO_SHARD no_sync tied weights",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._flat_param:FlatParamHandle._use_sharded_grad_views",
        """
        prim_param = getattr(prim_module, prim_param_name)
        param.grad = prim_param.grad  # share the same reference
        """,
        """
        prim_param = getattr(prim_module, prim_param_name)
        if prim_param.grad is not None and prim_param.grad.dtype != param.dtype:
            # NOTE: This is the same hack to side step the dtype check.
            if param.grad is None:
                param.grad = torch.empty_like(param)
            param.grad.data = prim_param.grad
        else:
            param.grad = prim_param.grad  # share the same reference
        """,
    ),
)
