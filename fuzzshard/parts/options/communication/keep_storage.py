"""``set_keep_unsharded_storage``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word


class KeepStorage(Word):
    """Unsharded memory is kept; drawn seldom, as older releases have it not."""

    name, for_all = "keep_storage", 15
    call = "set_keep_unsharded_storage(True, recurse=False)"
    meaning = "a group that keeps its unsharded memory"
    gives = ("keeps",)
