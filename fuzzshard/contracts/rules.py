"""The rules themselves, by the public API that they are about."""

from __future__ import annotations

from fuzzshard.contracts.contract import Contract

_API = "torch/distributed/fsdp/_fully_shard/_fsdp_api.py"
_STATE = "torch/distributed/fsdp/_fully_shard/_fsdp_state.py"

REDUCTIONS_FOLLOW_GRAD_DTYPE = Contract(
    name="reductions-follow-grad-dtype",
    says=(
        "Without a reduce_dtype, gradients are reduced and accumulated in the dtype that the "
        "parameter had at lazy initialization, or in its explicit grad_dtype; before, in "
        "param_dtype."
    ),
    quote=(
        "With reduce_dtype=None, gradients were previously reduced in param_dtype when it was "
        "set. They now follow the parameter's grad_dtype as described above, e.g. fp32 for fp32 "
        "parameters with param_dtype=torch.bfloat16. [...] FSDP1 still reduces in param_dtype."
    ),
    source=f"MixedPrecisionPolicy, versionchanged 2.15 ({_API})",
    since="2.15",
)

NCCL_RECORDS_LIKE_OTHERS = Contract(
    name="nccl-records-like-others",
    says="What the name nccl stands for is recorded by the general flight recorder.",
    quote="FlightRecorder by itself: stock ProcessGroupNCCL does, nccl2 needs the",
    source="_register_builtin_nccl_backend (torch/distributed/distributed_c10d.py)",
    since="2.15",
)

CONTRACTS: tuple[Contract, ...] = (
    REDUCTIONS_FOLLOW_GRAD_DTYPE,
    NCCL_RECORDS_LIKE_OTHERS,
)
"""Every rule, for the tests and for whoever reads them."""
