"""Other nodes as a coordinator sees them: how they are reached, lost, and found again.

Whoever starts a coordinator knows how to reach them (:func:`reaching`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

from fuzzshard.errors import FuzzshardError, InfraError, UsageError
from fuzzshard.world.activity import Threads
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.lender import CHANNELS, ChannelName
from fuzzshard.world.processes import RankNode, RankProcess

ANSWER_SECONDS = 20.0
START_SECONDS = 120.0
"""A fork server may still import torch."""

RETURN_SECONDS = 300.0
"""How long a world waits for a node that it has lost."""

SECONDS_BETWEEN = 0.5
"""Between two tries to reach it."""


class Connection(Protocol):
    """Leads to a :class:`fuzzshard.world.lender.Lender` of this coordinator, from any thread.

    ``name`` is what people know its node by. ``address`` is that of the node and ``our_address``
    that of this one, for ranks.
    """

    name: str
    address: str
    our_address: str

    def ask(self, method: str, *arguments: Any, seconds: float | None) -> Any:
        """Call a method there. Raises the :class:`FuzzshardError` that it raises, and
        ConnectionError where there is no lender, or no answer in time.
        """

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method there without waiting for its end."""

    def end(self) -> None:
        """End the lender, and its ranks with it; it may be gone."""


class FarChannel:
    """The coordinator's end of a channel to a rank of another node; to selectors it is a file."""

    def __init__(self, name: ChannelName, connection: Connection) -> None:
        self._name, self._connection = name, connection
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._heard = bytearray()
        self._has_ended = False
        self._lock = threading.Lock()

    def hear(self, data: bytes) -> None:
        """Take what the rank has sent: nothing when it has closed its end."""
        with self._lock:
            self._heard += data
            self._has_ended |= not data
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        """Return what is readable as long as there is something to receive."""
        return self._event

    def recv(self, size: int, flags: int, /) -> bytes:
        """Do as a socket's does; it never waits."""
        with self._lock:
            if not self._heard and not self._has_ended:
                raise BlockingIOError
            data = bytes(self._heard[:size])
            del self._heard[:size]
            if not self._heard and not self._has_ended:
                os.eventfd_read(self._event)
            return data

    def sendall(self, data: bytes, /) -> None:
        """Do as a socket's does. That nobody is there any more is heard."""
        self._connection.tell("say", self._name, data)

    def close(self) -> None:
        """Do as a socket's does."""
        with self._lock:
            if self._event < 0:
                return
            os.close(self._event)
            self._event = -1
        self._connection.tell("hang_up", self._name)


class OtherNode(RankNode):
    """A node that is reached by a ``connection``; lost once that does not answer.

    Waits until the lender has begun, which may wait itself until others leave the node. Raises
    :class:`InfraError` where there is none.
    """

    def __init__(self, connection: Connection) -> None:
        self.name, self._connection = connection.name, connection
        self.address, self.our_address = connection.address, connection.our_address
        self._numbers = itertools.count()
        self._channels: dict[ChannelName, FarChannel] = {}
        try:
            self.num_devices: int = connection.ask("num_devices", seconds=None)
        except ConnectionError as error:
            connection.end()
            raise InfraError(f"{self.name} cannot lend its ranks: {error}") from None
        connection.tell("import_torch")
        self._hearing = threading.Thread(target=self._hear, name="fuzzshard-node", daemon=True)
        self._hearing.start()

    def close(self) -> None:
        """Ends all ranks there. Takes no lock, which a thread that waits may hold."""
        if self.is_lost:
            return
        self.is_lost = True
        self._connection.end()
        for channel in list(self._channels.values()):
            channel.hear(b"")

    def join(self) -> None:
        """Waits until nobody asks it anything any more, after :meth:`close`."""
        self._hearing.join(ANSWER_SECONDS)

    def start_rank(self, rank: int, config: WorldConfig) -> RankProcess:
        """Do as :meth:`RankNode.start_rank` does."""
        number = next(self._numbers)
        channel, side = (self._channel((number, which)) for which in CHANNELS)
        try:
            pid = self._ask("lend", number, rank, config, seconds=START_SECONDS)
        except FuzzshardError as error:
            channel.close()
            side.close()
            raise InfraError(f"{self.name}: {error.problem}", error.remedy) from None
        return RankProcess(rank, pid, channel, side, self)

    def end_rank(self, process: RankProcess, *, kill: bool) -> int:
        """Do as :meth:`RankNode.end_rank` does."""
        code = super().end_rank(process, kill=kill)
        self._channels = {
            name: channel
            for name, channel in self._channels.items()
            if channel not in (process.channel, process.side)
        }
        return code

    def kill_group(self, pid: int) -> None:
        """Do as :meth:`RankNode.kill_group` does."""
        self._ask_or(None, "kill_group", pid)

    def exit_code(self, pid: int) -> int | None:
        """Do as :meth:`RankNode.exit_code` does; of a node that is lost, that of a killed rank."""
        code: int | None = self._ask_or(-signal.SIGKILL, "exit_code", pid)
        return code

    def ask_stacks(self, pid: int) -> None:
        """Do as :meth:`RankNode.ask_stacks` does."""
        self._ask_or(None, "ask_stacks", pid)

    def printed(self, pid: int, start: int = 0) -> bytes:
        """Do as :meth:`RankNode.printed` does."""
        data: bytes = self._ask_or(b"", "printed", pid, start)
        return data

    def activity(self, pids: Collection[int]) -> dict[int, Threads]:
        """Do as :meth:`RankNode.activity` does; on a node that is lost there are none."""
        nothing: dict[int, Threads] = {pid: {} for pid in pids}
        threads: dict[int, Threads] = self._ask_or(nothing, "activity", tuple(pids))
        return threads

    def descendants(self, pids: Collection[int]) -> frozenset[int]:
        """Do as :meth:`RankNode.descendants` does."""
        found: frozenset[int] = self._ask_or(frozenset(), "descendants", tuple(pids))
        return found

    def _ask_or(self, lost: Any, method: str, *arguments: Any) -> Any:
        """Return the answer, or ``lost`` where the node is."""
        try:
            return self._ask(method, *arguments, seconds=ANSWER_SECONDS)
        except FuzzshardError:
            self.close()  # a fork server that cannot start has no ranks
            return lost

    def _ask(self, method: str, *arguments: Any, seconds: float) -> Any:
        if self.is_lost:
            raise InfraError("the node is lost")
        try:
            return self._connection.ask(method, *arguments, seconds=seconds)
        except ConnectionError as error:
            self.close()
            raise InfraError(f"the node is lost: {error}") from None

    def _channel(self, name: ChannelName) -> FarChannel:
        channel = self._channels[name] = FarChannel(name, self._connection)
        return channel

    def _hear(self) -> None:
        """The thread that passes on what ranks say, and notices that their node is lost."""
        with contextlib.suppress(FuzzshardError):
            while True:
                for name, data in self._ask("hear", seconds=ANSWER_SECONDS):
                    if (channel := self._channels.get(name)) is not None:
                        channel.hear(data)


class _Known:
    """What a coordinator knows of one node."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.node: OtherNode | None = None
        self.lost_at: float | None = None


Reach = Callable[[str], Connection]
"""Makes a lender on the node with this id; raises :class:`InfraError` where that cannot be."""

Tell = Callable[[str, bool], None]
"""Is told that the node of this name is lost, or (False) back."""


def _nowhere(id: str) -> Connection:
    raise InfraError(f"nobody knows how to reach the node {id}")


_reach: Reach = _nowhere
_tell: Tell = lambda name, is_lost: None  # noqa: E731
_known: dict[str, _Known] = {}
_known_lock = threading.Lock()
_ends = 0


@contextlib.contextmanager
def reaching(reach: Reach) -> Iterator[None]:
    """Let worlds lie on other nodes; then their ranks there end."""
    global _reach
    before, _reach = _reach, reach
    try:
        yield
    finally:
        _reach = before
        end_nodes()
        for known in list(_known.values()):
            if known.node is not None:
                known.node.join()


def node_of(id: str, config: WorldConfig) -> OtherNode:
    """Return the node with this id.

    One that was there and is lost is waited for, up to :data:`RETURN_SECONDS` in all. Raises
    :class:`InfraError` where it cannot be reached, and :class:`UsageError` where it has too few
    devices.
    """
    with _known_lock:
        known = _known.setdefault(id, _Known())
    ends = _ends
    with known.lock:
        if known.node is not None:
            known.node.activity(())  # tells whether it still answers
        if known.node is None or known.node.is_lost:
            known.node = _reached(id, known, lambda: ends != _ends)
        node = known.node
    if config.device == "cuda" and config.device_of(config.size - 1) >= node.num_devices:
        raise UsageError(
            f"{node.name} has {node.num_devices} CUDA devices, and its ranks need "
            f"{config.device_of(config.size - 1) + 1}",
            "use a smaller --world-size",
        )
    return node


def _reached(id: str, known: _Known, is_ended: Callable[[], bool]) -> OtherNode:
    until, before = time.monotonic(), known.node
    if before is not None and known.lost_at is None:
        known.lost_at = until
        _tell(before.name, True)
    if known.lost_at is not None:
        until = known.lost_at + RETURN_SECONDS
    while True:
        try:
            node = OtherNode(_reach(id))
        except InfraError:
            if time.monotonic() < until and not is_ended():
                time.sleep(SECONDS_BETWEEN)
                continue
            if before is None:
                raise
            raise InfraError(
                f"{before.name} is lost and has not come back in {RETURN_SECONDS / 60:g} minutes",
                "the same command goes on once it is back",
            ) from None
        if known.lost_at is not None:
            known.lost_at = None
            _tell(node.name, False)
        return node


@contextlib.contextmanager
def telling(tell: Tell) -> Iterator[None]:
    """Let ``tell`` hear of nodes that are lost, and back, from whatever thread."""
    global _tell
    before, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = before


def end_nodes() -> None:
    """Ends all ranks on other nodes, and whoever waits for one of these."""
    global _ends
    _ends += 1
    for known in list(_known.values()):
        if (node := known.node) is not None:
            node.close()
