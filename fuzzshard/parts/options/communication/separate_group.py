"""``set_separate_reduce_scatter_group``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word


class SeparateGroup(Word):
    """Reduce-scatters have a process group of their own."""

    name, anywhere = "separate_group", 7
    call = "set_separate_reduce_scatter_group(True)"
    meaning = "a group with a process group for its reduce-scatters"
    gives = ("own_group",)
