"""``set_reduce_scatter_max_input_buffers``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word


class TwoBuffers(Word):
    """Two reduce-scatters may be in flight."""

    name, anywhere = "two_buffers", 3
    call = "set_reduce_scatter_max_input_buffers(2)"
    meaning = "a group that may have two reduce-scatters in flight"
