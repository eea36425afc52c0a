"""``set_reduce_scatter_unused_params``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word


class ZerosForUnused(Word):
    """Parameters get zeros where they had no gradient."""

    name, anywhere = "zeros_for_unused", 8
    call = "set_reduce_scatter_unused_params(True, recurse=False)"
    meaning = "a group that reduces zeros for parameters without a gradient"
    gives = ("fills", "looks_at_unsharded")
