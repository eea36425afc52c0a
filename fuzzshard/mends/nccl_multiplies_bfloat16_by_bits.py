"""NCCL multiplies bfloat16 gradients by two bytes of a float.

With a custom divide factor ``_get_gradient_divide_factors``
(``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``) reduces by ``PREMUL_SUM``. For
bfloat16 ``getNcclReduceOp`` in ``ProcessGroupNCCL.cpp`` hands NCCL the factor as a float
(``unpackPreMulSum<float, ncclBfloat16>``), and NCCL reads the lower two of its bytes: 0 for a
power of two, noise otherwise. Gradients are zero without a word. The kernel is right for sums,
which ``set_force_sum_reduction_for_comms`` takes in its place and divides afterwards.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "With NCCL a custom divide factor turns bfloat16 gradients into zeros or noise"
COMPONENT = "other"
CONTRACT = Promise(
    "Sets a custom divide factor for the gradient reduction",
    "FSDPModule.set_gradient_divide_factor",
)
TORCH = Releases(since="2.11", until="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/190745",
        "closed; pytorch PR 190747, of July 2026",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:_get_gradient_divide_factors",
        'if device_type == "mtia":',
        """
ranks = 1 if reduce_scatter_group is None else reduce_scatter_group.size()
premultiplied = factor is not None and ranks > 1 and factor != ranks
if device_type == "mtia" or (device_type == "cuda" and reduce_dtype == torch.bfloat16 and premultiplied):
        """,
    ),
)
