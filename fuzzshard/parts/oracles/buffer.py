"""The buffers of a model: statistics of batch norms."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Buffer(oracle.TensorOracle):
    """Every buffer after what may have changed it."""

    name = "buffer"
    place = 140
    looks = ("buffers",)
    of_buffers = True
    holds_buffers = True
    what = "buffer"
    thing = "The buffer {name}"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        for name, buffer in seen.buffers():
            seen.keep(self, index, name, buffer)

    @override
    def entries(self, watch: oracle.Watch, index: int) -> str:
        if not watch.has_buffers:
            return ""
        watch.scope.uses.add("buffer_names")
        over = f"n, b in zip(buffer_names, {watch.scope.called}.buffers())"
        return watch.entries(index, "b", over, oracle=self.name)
