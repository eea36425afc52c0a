"""A group refuses to reduce accumulated gradients together with new ones.

With ``reduce_dtype`` a gradient that waits for its reduction
(``set_requires_gradient_sync(False)``) is kept in that dtype
(``FSDPParam.to_accumulated_grad_if_needed``); one that comes in the backward that reduces has the
dtype of the computation. Where a group has both, as parameters of it are used in some microbatches
only, ``foreach_reduce`` (``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``) finds two
dtypes and raises, though both are to be reduced in ``reduce_dtype``. Casting to it before the copy
is all that is missing.
Torch 2.15 copies from several dtypes.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard reduce_dtype: backward fails when only a part of a group has accumulated"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "specifies the dtype for gradient reduction", "MixedPrecisionPolicy, reduce_dtype"
)
SETUP = (
    "Microbatches accumulate under ``set_requires_gradient_sync(False)`` with a "
    "``reduce_dtype``, and some parameters are used in some of them only: experts, adapters."
)
WORKAROUND = (
    "Reduce in every microbatch, or leave ``reduce_dtype`` at the dtype of the computation."
)
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/pull/160279", "the same assertion"),
    Public("https://github.com/pytorch/pytorch/issues/196996", "the same assertion"),
    Public(
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3540",
        "merged: works around it",
        "fully_shard reduce-scatter expects uniform gradient dtype but got "
        "set_requires_gradient_sync"
        " reduce_dtype",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        "grad_dtypes = {grad.dtype for grad in unsharded_grads}",
        """
if reduce_dtype is not None and len({grad.dtype for grad in unsharded_grads}) > 1:
    unsharded_grads[:] = [grad.to(reduce_dtype) for grad in unsharded_grads]
grad_dtypes = {grad.dtype for grad in unsharded_grads}
        """,
    ),
)
