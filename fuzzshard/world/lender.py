"""A node that lends its ranks to worlds whose coordinator is on another one."""

from __future__ import annotations

import contextlib
import selectors
import socket

from fuzzshard.world.config import WorldConfig
from fuzzshard.world.device import cuda_devices
from fuzzshard.world.messages import Channel
from fuzzshard.world.processes import ForkServer

HEAR_SECONDS = 1.0
"""How long :meth:`Lender.hear` waits for a rank to say something."""

_CHUNK = 1 << 20
_LATEST_BYTES = 1 << 20

ChannelName = tuple[int, str]
"""The number of a rank, which its coordinator has chosen, and which of its two channels it is."""
CHANNELS = ("channel", "side")


class Lender(ForkServer):
    """The fork server of its node; what a coordinator says to ranks, and hears of them, goes
    through it.

    It serves one coordinator, from as many threads as that likes, and dies with it: whoever makes
    it sees to that. The fork server and its ranks die with this process
    (:mod:`fuzzshard.world.zygote`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._channels: dict[ChannelName, Channel] = {}
        self._selector = selectors.DefaultSelector()

    def num_devices(self) -> int:
        """Return how many CUDA devices there are for ranks."""
        return cuda_devices()

    def lend(self, number: int, rank: int, config: WorldConfig) -> int:
        """Start a rank that has this ``number`` from now on; return its pid."""
        process = self.start_rank(rank, config)
        for which, channel in zip(CHANNELS, (process.channel, process.side), strict=True):
            self._channels[number, which] = channel
            self._selector.register(channel, selectors.EVENT_READ, (number, which))
        return process.pid

    def printed(self, pid: int, start: int = 0) -> bytes:
        """Do as :meth:`RankNode.printed` does, of what was printed last."""
        return super().printed(pid, start)[-_LATEST_BYTES:]

    def say(self, name: ChannelName, data: bytes) -> None:
        """Send bytes to a rank, if it is there."""
        if (channel := self._channels.get(name)) is not None:
            with contextlib.suppress(OSError):  # it is gone, and hear() says so
                channel.sendall(data)

    def hang_up(self, name: ChannelName) -> None:
        """Close a channel."""
        if (channel := self._channels.pop(name, None)) is not None:
            self._selector.unregister(channel)
            channel.close()

    def hear(self) -> list[tuple[ChannelName, bytes]]:
        """Return what ranks have sent since the last call, in pieces, without bytes for one that
        has closed its end. It waits a while if there is nothing. One thread at a time may call it.
        """
        heard: list[tuple[ChannelName, bytes]] = []
        for key, _ in self._selector.select(HEAR_SECONDS):
            assert isinstance(key.fileobj, socket.socket)
            try:
                data = key.fileobj.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:  # another rank has the descriptor by now
                continue
            except OSError:
                data = b""
            heard.append((key.data, data))
            if not data:
                self.hang_up(key.data)
        return heard
