"""Reading what a rank says without waiting for the rest of it."""

from __future__ import annotations

import socket

from fuzzshard.world.messages import Channel, Message, decoded

_CHUNK = 1 << 20


class Inbox:
    """What has come through a channel, of which the last message may be a part only.

    A rank may stop for ever in the middle of a message that no buffer of a socket holds. Whoever
    waits for several ranks, or has a deadline, may not wait for the rest of it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._data = bytearray()

    def take(self) -> list[Message | None]:
        """The messages that are whole by now; None when the peer closed its end. It never
        waits.
        """
        try:
            chunk = self._channel.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:  # reset, or no answer from its node
            chunk = b""
        if not chunk:
            return [None]
        self._data += chunk
        return list(decoded(self._data))
