"""Other nodes as a coordinator sees them: how they are reached, lost, and found again."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator

from fuzzshard.errors import InfraError, UsageError
from fuzzshard.versions import differences, versions
from fuzzshard.world.activity import Threads
from fuzzshard.world.config import WorldConfig, split_address
from fuzzshard.world.link import (
    HANDSHAKE_SECONDS,
    Answer,
    AskStacks,
    Descendants,
    Done,
    Ended,
    Enter,
    Entered,
    ExitCode,
    Kill,
    Lend,
    Look,
    Printed,
    Refused,
    Request,
    Seen,
    Start,
    Started,
    Text,
    greet,
    notice_silence,
    read_secret,
    reason,
    receive_answer,
)
from fuzzshard.world.messages import send
from fuzzshard.world.processes import Node, RankProcess

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 20.0
START_SECONDS = 120.0
"""A fork server may still import torch."""

RETURN_SECONDS = 300.0
"""How long a world waits for a node that it has lost."""

SECONDS_BETWEEN = 0.5
"""Between two tries to reach it."""

REMEDY = "start fuzzshard host there, and check the address, the port and the firewall"


class RemoteNode(Node):
    """One connection to a :mod:`fuzzshard.world.host`. Once it is broken, the node is lost.

    ``address`` is that of the node, ``our_address`` the one at which it sees us. Raises
    :class:`InfraError` where nobody answers, and :class:`UsageError` where whoever does cannot be
    used.
    """

    def __init__(self, name: str, secret: bytes) -> None:
        self.name = name
        self._secret = secret
        self._names = itertools.count()
        self._lock = threading.Lock()
        self._control = self._connect()
        try:
            self.address = self._control.getpeername()[0]
            self.our_address = self._control.getsockname()[0]
            entered = self._first(self._control, Enter(versions=versions()))
            assert isinstance(entered, Entered)
            different = differences(versions(), entered.versions, "this node")
            if different:
                raise UsageError(f"{name} cannot be used: {different}", "install the same there")
        except OSError as error:
            self._control.close()
            raise InfraError(f"{name} does not answer: {reason(error)}", REMEDY) from None
        except BaseException:
            self._control.close()
            raise
        self._session = entered.session
        self.num_devices = entered.num_devices

    def close(self) -> None:
        """Ends all ranks there. Takes no lock, which a thread that waits for an answer holds."""
        self.is_lost = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def start_rank(self, rank: int, config: WorldConfig) -> RankProcess:
        """As :meth:`Node.start_rank`."""
        name = str(next(self._names))
        try:
            channel, side = self._lend(f"{name} channel"), self._lend(f"{name} side")
        except (OSError, InfraError) as error:
            raise self._lost(error) from None
        request = Start(rank=rank, config=config, channel=f"{name} channel", side=f"{name} side")
        try:
            started = self._ask(request, START_SECONDS)
        except OSError as error:
            channel.close()
            side.close()
            raise self._lost(error) from None
        if isinstance(started, Refused):
            raise InfraError(f"{self.name}: {started.problem}", started.remedy)
        assert isinstance(started, Started)
        return RankProcess(rank, started.pid, channel, side, self)

    def kill_group(self, pid: int) -> None:
        """As :meth:`Node.kill_group`."""
        self._answer(Kill(pid=pid))

    def exit_code(self, pid: int) -> int | None:
        """As :meth:`Node.exit_code`; of a node that is lost, that of a killed rank."""
        answer = self._answer(ExitCode(pid=pid))
        return answer.code if isinstance(answer, Ended) else -signal.SIGKILL

    def ask_stacks(self, pid: int) -> None:
        """As :meth:`Node.ask_stacks`."""
        self._answer(AskStacks(pid=pid))

    def printed(self, pid: int, start: int = 0) -> bytes:
        """As :meth:`Node.printed`."""
        answer = self._answer(Printed(pid=pid, start=start))
        return answer.data if isinstance(answer, Text) else b""

    def activity(self, pids: Collection[int]) -> dict[int, Threads]:
        """As :meth:`Node.activity`; on a node that is lost there are none."""
        answer = self._answer(Look(pids=tuple(pids)))
        return answer.threads if isinstance(answer, Seen) else {pid: {} for pid in pids}

    def descendants(self, pids: Collection[int]) -> frozenset[int]:
        """As :meth:`Node.descendants`."""
        answer = self._answer(Descendants(pids=tuple(pids)))
        return frozenset(answer.threads if isinstance(answer, Seen) else ())

    def _answer(self, request: Request) -> Answer:
        try:
            return self._ask(request, ANSWER_SECONDS)
        except OSError as error:
            self._lost(error)
            return Refused(problem="the node is lost")

    def _ask(self, request: Request, seconds: float) -> Answer:
        with self._lock:
            if self.is_lost:
                raise ConnectionResetError("it is lost")
            self._control.settimeout(seconds)
            send(self._control, request)
            return receive_answer(self._control)

    def _lost(self, error: Exception) -> InfraError:
        self.close()
        return InfraError(f"{self.name} is lost: {error}", REMEDY)

    def _lend(self, name: str) -> socket.socket:
        """A connection that a rank is to have."""
        channel = self._connect()
        answer = self._first(channel, Lend(session=self._session, name=name))
        assert isinstance(answer, Done)
        channel.settimeout(None)
        return channel

    def _connect(self) -> socket.socket:
        try:
            channel = socket.create_connection(split_address(self.name), CONNECT_SECONDS)
        except OSError as error:
            raise InfraError(f"nobody answers at {self.name}: {reason(error)}", REMEDY) from None
        try:
            notice_silence(channel)
            channel.settimeout(HANDSHAKE_SECONDS)
            if problem := greet(channel, self._secret):
                raise UsageError(
                    f"{self.name} cannot be used: {problem}",
                    "give both nodes a copy of the same file with --secret-file",
                )
        except OSError as error:
            channel.close()
            raise InfraError(f"{self.name} does not answer: {reason(error)}", REMEDY) from None
        except UsageError:
            channel.close()
            raise
        return channel

    def _first(self, channel: socket.socket, request: Enter | Lend) -> Answer:
        send(channel, request)
        return receive_answer(channel)


class _Known:
    """What a coordinator knows of one address."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.node: RemoteNode | None = None
        self.lost_at: float | None = None


Tell = Callable[[str, bool], None]
"""Is told that the node of this name is lost, or (False) back."""

_tell: Tell = lambda name, is_lost: None  # noqa: E731
_known: dict[str, _Known] = {}
_known_lock = threading.Lock()
_ends = 0


def host_at(name: str, config: WorldConfig) -> RemoteNode:
    """The node where a :mod:`fuzzshard.world.host` listens at ``name``.

    One that was there and is lost is waited for, up to :data:`RETURN_SECONDS` in all. Raises what
    :class:`RemoteNode` does.
    """
    with _known_lock:
        known = _known.setdefault(name, _Known())
    ends = _ends
    with known.lock:
        if known.node is not None:
            known.node.activity(())  # tells whether it still answers
        if known.node is None or known.node.is_lost:
            known.node = _reach(name, config, known, lambda: ends != _ends)
        node = known.node
    if config.device == "cuda" and config.device_of(config.size - 1) >= node.num_devices:
        raise UsageError(
            f"{name} has {node.num_devices} CUDA devices, and its ranks need "
            f"{config.device_of(config.size - 1) + 1}",
            "use a smaller --world-size",
        )
    return node


def _reach(
    name: str, config: WorldConfig, known: _Known, is_ended: Callable[[], bool]
) -> RemoteNode:
    secret, until = read_secret(config.secret_file), time.monotonic()
    if known.node is not None and known.lost_at is None:
        known.lost_at = until
        _tell(name, True)
    if known.lost_at is not None:
        until = known.lost_at + RETURN_SECONDS
    while True:
        try:
            node = RemoteNode(name, secret)
        except InfraError as error:
            if time.monotonic() < until and not is_ended():
                time.sleep(SECONDS_BETWEEN)
                continue
            if known.node is None:
                raise
            raise InfraError(
                f"{name} is lost and has not come back in {RETURN_SECONDS / 60:g} minutes",
                error.remedy,
            ) from None
        if known.lost_at is not None:
            known.lost_at = None
            _tell(name, False)
        return node


@contextlib.contextmanager
def telling(tell: Tell) -> Iterator[None]:
    """Within it ``tell`` hears of nodes that are lost, and back, from whatever thread."""
    global _tell
    before, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = before


def end_hosts() -> None:
    """Ends all ranks on other nodes, and whoever waits for one of these."""
    global _ends
    _ends += 1
    for known in list(_known.values()):
        if (node := known.node) is not None:
            node.close()
