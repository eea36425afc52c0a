"""``device_mesh``."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.option import Case, DrawingFSDP1, Reasons, SeenByFSDP1
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class DeviceMesh(FSDP1Option):
    """FSDP1 gets a mesh instead of the process group."""

    name, place, further = "device_mesh", 11, True
    traits = {True: ("takes_mesh",)}
    meanings = {"fsdp1:device_mesh": "FSDP1 is given a device mesh"}

    @override
    def draw(self, drawing: DrawingFSDP1) -> bool:
        hybrid = drawing.case.fsdp1.does("hybrid")
        one_axis = drawing.case.mesh.replicate is None
        return not hybrid and one_axis and drawing.tape.chance(30)

    @override
    def features(self, value: bool, case: Case) -> Iterator[str]:
        if case.fsdp1.does("takes_mesh"):
            yield from self.meanings

    @override
    def excludes(self, value: bool, seen: SeenByFSDP1) -> Reasons:
        case = seen.case
        if value and case.mesh.replicate is not None and not case.fsdp1.does("hybrid"):
            yield (
                "a mesh of two axes for a strategy that has one",
                "fully_sharded_data_parallel.py, class docstring, device_mesh: 'For hybrid "
                "sharding strategies such as HYBRID_SHARD, users can pass in a 2D DeviceMesh'",
            )
