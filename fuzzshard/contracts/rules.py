"""The rules themselves, by the public API that they are about."""

from __future__ import annotations

from fuzzshard.contracts.contract import Contract

_API = "torch/distributed/fsdp/_fully_shard/_fsdp_api.py"
_STATE = "torch/distributed/fsdp/_fully_shard/_fsdp_state.py"
_FULLY_SHARD = "torch/distributed/fsdp/_fully_shard/_fully_shard.py"

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

CHANGES_BETWEEN_FORWARD_AND_BACKWARD = Contract(
    name="changes-between-forward-and-backward",
    says="Sharded parameters may be modified between a forward and its backward.",
    quote=(
        "To modify the parameters between forward and backward, the registered parameters must be "
        "the sharded parameters. For False or an int, this can be done by manually resharding via "
        "reshard()."
    ),
    source=(
        f"fully_shard, reshard_after_forward ({_FULLY_SHARD}); 2.15 says in its place: Modifying "
        "the parameters between forward and backward is not supported: the backward all-gather is "
        "not ordered after such writes, so backward may see the old values."
    ),
    until="2.15",
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
    CHANGES_BETWEEN_FORWARD_AND_BACKWARD,
    NCCL_RECORDS_LIKE_OTHERS,
)
"""Every rule, for the tests and for whoever reads them."""
