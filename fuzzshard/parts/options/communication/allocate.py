"""``set_allocate_memory_from_process_group_for_comm``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word


class Allocate(Word):
    """The process group allocates what is sent."""

    name, anywhere = "allocate", 1
    call = "set_allocate_memory_from_process_group_for_comm(True)"
    meaning = "a group whose process group allocates what it sends"
    gives = ("uses_group_memory",)
