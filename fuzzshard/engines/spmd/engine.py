"""``fully_shard`` of DTensors on the whole mesh."""

from __future__ import annotations

from typing import ClassVar

from torch.distributed import fsdp
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.engines.fully_shard.engine import FullyShard


class SPMD(FullyShard):
    """What is unsharded is a DTensor too."""

    name: ClassVar[str] = "spmd"
    predicts_groups = False

    @override
    @classmethod
    def lacking(cls, case: Case) -> str | None:
        there = hasattr(fsdp, "DataParallelMeshDims")
        return super().lacking(case) if there else "DataParallelMeshDims"


ENGINE = SPMD
