"""``fuzzshard host``: lends the ranks of this node to worlds whose coordinator is on another one.

One process listens at one address. A coordinator has one connection for requests, and two more for
each rank: its channels, which the rank gets as they are, so that nothing is relayed. When the
connection for requests is closed, or its other end is silent, all ranks of the coordinator end.
The fork server ends with this process, and all ranks with it (:mod:`fuzzshard.world.zygote`).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec

from fuzzshard.errors import FuzzshardError, InfraError, UsageError
from fuzzshard.versions import versions
from fuzzshard.world.config import split_address
from fuzzshard.world.device import cuda_devices
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
    first_decoder,
    notice_silence,
    reason,
    request_decoder,
    welcome,
)
from fuzzshard.world.messages import receive_bytes, send
from fuzzshard.world.processes import ForkServer

_LATEST_BYTES = 1 << 20
"""What is told of the output of a rank."""


class Host:
    """Serves coordinators at ``listening`` that know the ``secret``, each in a thread of its own,
    until :meth:`close`. ``say`` gets a line when one comes or goes.
    """

    def __init__(
        self, listening: socket.socket, secret: bytes, say: Callable[[str], None]
    ) -> None:
        self._listening = listening
        self._secret = secret
        self._say = say
        self._server = ForkServer()
        self._sessions: dict[str, _Session] = {}
        self._closed = threading.Event()

    def serve(self) -> None:
        """Returns after :meth:`close`."""
        threading.Thread(target=self._import_torch, daemon=True).start()
        while not self._closed.is_set():
            try:
                channel, (address, port, *_) = self._listening.accept()
            except OSError:
                break
            threading.Thread(
                target=self._meet, args=(channel, f"{address}:{port}"), daemon=True
            ).start()
        self._server.close()

    def close(self) -> None:
        """Ends :meth:`serve` and all ranks. Takes no lock: signal handlers call it."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes whoever accepts
        self._server.stop_importing()

    def _import_torch(self) -> None:
        try:
            self._server.import_torch()
        except InfraError as error:
            if not self._closed.is_set():
                self._say(str(error))

    def _meet(self, channel: socket.socket, peer: str) -> None:
        """The thread of one connection."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(channel)
            stack.enter_context(contextlib.suppress(OSError, msgspec.MsgspecError))
            notice_silence(channel)
            channel.settimeout(HANDSHAKE_SECONDS)
            if not welcome(channel, self._secret):
                self._say(f"{peer} does not know the secret")
                return
            data = receive_bytes(channel)
            channel.settimeout(None)
            first = None if data is None else first_decoder.decode(data)
            if isinstance(first, Lend):
                session = self._sessions.get(first.session)
                if session is not None:
                    session.lent[first.name] = channel
                    stack.pop_all()
                    send(channel, Done())
            elif isinstance(first, Enter):
                self._serve_session(channel, peer)

    def _serve_session(self, channel: socket.socket, peer: str) -> None:
        name = secrets.token_hex(16)
        session = self._sessions[name] = _Session(self._server)
        self._say(f"{peer} came")
        try:
            send(
                channel,
                Entered(session=name, versions=versions(), num_devices=cuda_devices()),
            )
            while (data := receive_bytes(channel)) is not None:
                send(channel, session.answer(request_decoder.decode(data)))
        finally:
            del self._sessions[name]
            session.close()
            self._say(f"{peer} has gone, and its ranks with it")


class _Session:
    """The ranks of one coordinator, and the connections that it has ``lent`` to some to come."""

    def __init__(self, server: ForkServer) -> None:
        self.lent: dict[str, socket.socket] = {}
        self._server = server
        self._pids: set[int] = set()

    def answer(self, request: Request) -> Answer:
        try:
            return self._answer(request)
        except FuzzshardError as error:
            return Refused(problem=error.problem, remedy=error.remedy)
        except (KeyError, OSError) as error:
            return Refused(problem=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        for channel in self.lent.values():
            channel.close()
        for pid in self._pids:
            self._server.kill_group(pid)
        for pid in self._pids:
            with contextlib.suppress(InfraError):  # the fork server is gone, and they with it
                while self._server.exit_code(pid) is None:
                    threading.Event().wait(0.01)

    def _answer(self, request: Request) -> Answer:
        if isinstance(request, Start):
            with self.lent.pop(request.channel) as channel, self.lent.pop(request.side) as side:
                pid = self._server.fork(request.rank, request.config, channel, side)
            self._pids.add(pid)
            return Started(pid=pid)
        if isinstance(request, Look):
            return Seen(threads=self._server.activity(request.pids))
        if isinstance(request, Descendants):
            return Seen(threads={pid: {} for pid in self._server.descendants(request.pids)})
        if request.pid not in self._pids:
            raise KeyError(f"no rank {request.pid}")
        if isinstance(request, ExitCode):
            code = self._server.exit_code(request.pid)
            if code is not None:
                self._pids.discard(request.pid)
            return Ended(code=code)
        if isinstance(request, Printed):
            return Text(data=self._server.printed(request.pid, request.start)[-_LATEST_BYTES:])
        if isinstance(request, Kill):
            self._server.kill_group(request.pid)
        else:
            assert isinstance(request, AskStacks)
            self._server.ask_stacks(request.pid)
        return Done()


def name_of(listening: socket.socket) -> str:
    """``ADDRESS:PORT`` of a socket; the kernel has chosen a port where 0 was asked for."""
    address, port, *_ = listening.getsockname()
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@contextlib.contextmanager
def listening(text: str) -> Iterator[socket.socket]:
    """A socket that listens at ``ADDRESS:PORT``, and nowhere else; raises :class:`UsageError`
    where that cannot be.
    """
    address, port = split_address(text)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, port), family=family, backlog=64)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {text}: {reason(error)}",
            "give an address of this machine, and a port that is free",
        ) from None
    with server:
        yield server
