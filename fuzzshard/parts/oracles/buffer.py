"""The buffers of a model: statistics of batch norms."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Buffer(oracle.TensorOracle):
    """Every buffer, such as the statistics of batch norms, after what may change it.

    It cannot see what a recomputation makes of a statistic before the next forward, which is what
    it looks at.
    """

    name = "buffer"
    place = 140
    looks = ("buffers",)
    of_buffers = True
    what = "buffer"
    value = "b"
    over = "n, b in zip(buffer_names, {called}.buffers())"
    thing = "The buffer {name}"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.buffers()
