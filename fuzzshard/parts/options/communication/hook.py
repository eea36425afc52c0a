"""``set_all_reduce_hook``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word


class Hook(Word):
    """A hook that changes nothing."""

    name, anywhere = "hook", 2
    call = "set_all_reduce_hook(lambda output: None)"
    meaning = "a group with an all-reduce hook"
    gives = ("has_hook",)
