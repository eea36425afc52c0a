"""A wrapped module sees other strides of its inputs in forward than in a recomputation.

Inputs that require gradients pass through ``RegisterPostBackwardFunction``
(``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``). It returns them as they are, and
autograd makes views of them with canonical strides where a dim has size 1. A recomputation that
begins after the backward of the group has (``FSDPState._pre_forward``) passes them on untouched. A
convolution of one channel chooses its layout by these strides, and ``matmul`` whether to fold a
batch, so the recomputation saves other tensors: a CheckpointError, or wrong gradients where their
shapes agree. An alias keeps the strides.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "A module that fully_shard wraps sees other strides of its inputs in a recomputation than "
    "in forward"
)
COMPONENT = "fully_shard"
CONTRACT = Promise("trades compute for memory", "torch.utils.checkpoint")
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/verl-project/verl/issues/4664",
        "open; near: suspects such strides where fully_shard meets sequence parallelism",
        "FSDP2 activation checkpoint CheckpointError recomputed tensors different metadata strides"
        " convolution channels last",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:RegisterPostBackwardFunction.forward",
        "return inputs",
        "return tuple(torch.ops.aten.alias(tensor) for tensor in inputs)",
    ),
)
