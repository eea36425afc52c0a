"""``device_mesh``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Reasons, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption


class DeviceMesh(DDPOption):
    """DDP gets a mesh instead of the process group."""

    name, place = "device_mesh", 9
    texts = {True: "device_mesh=mesh"}
    traits = {True: ("takes_mesh",)}
    meanings = {"ddp:device_mesh": "DDP is given a device mesh"}

    @override
    def draw(self, tape: Tape, seen: Replicated) -> bool:
        return seen.mesh_has_one_axis and tape.chance(40)

    @override
    def excludes(self, value: bool, seen: Replicated) -> Reasons:
        if value and not seen.mesh_has_one_axis:
            source = "distributed.py, __init__: 'Only 1D device mesh is supported'"
            yield "a mesh of two axes", source
