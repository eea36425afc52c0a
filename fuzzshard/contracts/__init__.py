"""Rules about torch that are not the same in all supported releases, each with its quote and its
releases.

Whoever predicts, refuses, allows or prints something that depends on the release of torch asks a
:class:`Contract` of this package. Nothing else compares versions of torch.
"""

from fuzzshard.contracts.contract import Contract, Releases, installed_torch, untried_lines
from fuzzshard.contracts.rules import (
    CONTRACTS,
    NCCL_RECORDS_LIKE_OTHERS,
    REDUCTIONS_FOLLOW_GRAD_DTYPE,
)

__all__ = [
    "CONTRACTS",
    "NCCL_RECORDS_LIKE_OTHERS",
    "REDUCTIONS_FOLLOW_GRAD_DTYPE",
    "Contract",
    "Releases",
    "installed_torch",
    "untried_lines",
]
