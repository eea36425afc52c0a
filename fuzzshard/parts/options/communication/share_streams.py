"""``share_comm_ctx``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word


class ShareStreams(Word):
    """All groups that are told so share their streams: it is for several FSDP roots."""

    name, for_roots, of_several = "share_streams", 70, True
    call = "share_comm_ctx"
    meaning = "a group that shares the streams of others"
    gives = ("shares",)
