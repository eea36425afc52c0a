"""What scripts of ``replicate`` with FSDP2 say."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.engines.fully_shard.script import FullyShardScript


class ReplicateWithFSDPScript(FullyShardScript):
    """Applies the wrap groups in order, on the data-parallel ranks as one axis."""

    sources = """
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp
"""
    wraps: ClassVar[str] = "replicate_with_fsdp"

    @override
    def arguments(self, case: Case, group: WrapGroup) -> list[str]:
        return super().arguments(case, replace(group, reshard_after_forward=None))

    @override
    def mesh_of(self, case: Case, group: WrapGroup) -> str:
        return "mesh" if case.mesh.replicate is None else 'mesh._flatten("data")'


SCRIPT = ReplicateWithFSDPScript()
