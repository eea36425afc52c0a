"""Gradients are added up over the tensor-parallel axis in the dtype of the computation, whatever
``reduce_dtype`` says.

A replicated parameter of a tensor-parallel plan, such as the weight of a norm that is sharded
along the sequence, has a gradient that is ``Partial`` over that axis.
``FSDPParam._get_grad_inner_tensor`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``) adds
it up before ``foreach_reduce`` casts to ``reduce_dtype`` and reduces over the data-parallel axes:
half of the sum is rounded to bfloat16 where float32 was asked for. With a cast before it, as for
gradients that have accumulated (``to_accumulated_grad_if_needed``), it is not.
Torch 2.15 casts first.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard reduce_dtype: sums over tensor-parallel ranks are made in param_dtype"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "specifies the dtype for gradient reduction (i.e. reduce-scatter or all-reduce)",
    "MixedPrecisionPolicy, reduce_dtype",
)
SETUP = (
    "``fully_shard`` with a ``reduce_dtype`` over tensor parallelism, where a parameter is "
    "replicated and its gradient is not: norms under ``SequenceParallel``, biases of "
    "``RowwiseParallel`` modules that return parts of a sequence."
)
WORKAROUND = (
    "``set_requires_gradient_sync(False)`` for the first of several microbatches: what "
    "accumulates is cast first."
)
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/190626", "the same"),
    Public("https://github.com/pytorch/pytorch/pull/190627", "a fix"),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._get_grad_inner_tensor",
        """
if self.is_dtensor:
    if isinstance(grad, AsyncCollectiveTensor):
        """,
        """
if self.is_dtensor:
    grad = _to_dtype_if_needed(grad, self.reduce_dtype)
    if isinstance(grad, AsyncCollectiveTensor):
        """,
    ),
)
