"""``set_all_reduce_hook`` with a stream."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Told
from fuzzshard.parts.options.communication import Word


class HookStream(Word):
    """A hook that changes nothing, on a stream of its own."""

    name, anywhere = "hook_stream", 4
    call = (
        "set_all_reduce_hook(lambda output: None, stream=torch.get_device_module(device).Stream())"
    )
    meaning = "a group with an all-reduce hook and a stream for it"
    refuses = {"has_hook": "a group has one all-reduce hook"}

    @override
    def misfit(self, told: Told) -> str | None:
        if told.case.mesh.replicate is not None:
            return 'a stream "should only be set if not using native HSDP"'
        return super().misfit(told)
