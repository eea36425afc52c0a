"""Communication hooks."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption

_AVERAGE = (
    "def average_hook(group, bucket):",
    "    summed = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()",
    "    return summed.then(lambda summed: summed.value()[0] / dist.get_world_size(group))",
)


class Hook(DDPOption):
    """Torch's ``allreduce_hook``, or one that divides after the sum."""

    name, place = "hook", 4
    meanings = {
        "ddp:hook_allreduce": "torch's all-reduce as a communication hook",
        "ddp:hook_average": "a communication hook that divides after the sum",
    }

    @override
    def draw(self, tape: Tape, seen: Replicated) -> str | None:
        return tape.weighted(((None, 6), ("allreduce", 2), ("average", 2)))

    @override
    def lines(self, value: str | None, engine: str, group: str) -> list[str]:
        if value is None:
            return []
        if value == "allreduce":
            return [f"{engine}.register_comm_hook({group}, allreduce_hook)"]
        return [
            *_AVERAGE,
            f"{engine}.register_comm_hook({group}, average_hook)",
        ]
