"""The coordinator's side of the fork server: starts rank processes, kills them, learns how they
ended.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path

import msgspec

from fuzzshard.errors import InfraError
from fuzzshard.temporary import TemporaryFolder, remove_abandoned
from fuzzshard.world.activity import DEAD, STOPPED, Threads, activity, descendants, state_of
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.messages import Channel
from fuzzshard.world.zygote import Fork, Reap, Reply

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # Enough for what a hang needs; each entry keeps the code of its Python stack alive. The second
    # name is the older one of the same setting.
    "TORCH_FR_BUFFER_SIZE": "256",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "256",
}
"""Of every rank."""

_reply_decoder = msgspec.json.Decoder(Reply)

REAP_SECONDS = 0.005
"""Between two questions whether a rank has ended: one without CUDA takes about as long to die."""


@dataclasses.dataclass
class RankProcess:
    """One live rank: its pid on its ``node``, and the channel to it.

    The ``side`` channel leads to a thread of the rank that answers while its main thread waits for
    ever.
    """

    rank: int
    pid: int
    channel: Channel
    side: Channel
    node: RankNode

    def is_alive(self) -> bool:
        """Return whether it can go on: it has not died, and nobody has stopped it. Its channel
        would say so later: a rank is dead before the last of its threads has closed that.
        """
        threads = self.node.activity([self.pid]).get(self.pid, {})
        return state_of(self.pid, threads) not in DEAD + STOPPED


class RankNode(ABC):
    """A machine that runs ranks; safe to use from several threads.

    Once a node is lost its ranks count as dead, and nothing but :meth:`start_rank` raises.
    """

    name = ""
    """What it is called; "" for this machine."""

    is_lost = False

    @abstractmethod
    def start_rank(self, rank: int, config: WorldConfig) -> RankProcess:
        """Forks one rank of a world. Raises InfraError where that cannot be done."""

    def end_rank(self, process: RankProcess, *, kill: bool) -> int:
        """Waits for a rank to end, killing it first if asked; its exit code, negative for a
        signal.

        What it has started dies with it: a rank leads a process group.
        """
        if kill:
            self.kill_group(process.pid)
        process.channel.close()
        process.side.close()
        while (code := self.exit_code(process.pid)) is None:
            time.sleep(REAP_SECONDS)
        return code

    @abstractmethod
    def kill_group(self, pid: int) -> None:
        """Kills a rank, and what it has started in its process group."""

    @abstractmethod
    def exit_code(self, pid: int) -> int | None:
        """Return how a rank ended, whose output is forgotten then; None if it still runs."""

    @abstractmethod
    def ask_stacks(self, pid: int) -> None:
        """Makes a rank print the stacks of all its threads."""

    @abstractmethod
    def printed(self, pid: int, start: int = 0) -> bytes:
        """Return what a rank has printed, its stacks included, from the byte ``start`` on."""

    @abstractmethod
    def activity(self, pids: Collection[int]) -> dict[int, Threads]:
        """Return what processes do (:mod:`fuzzshard.world.activity`)."""

    @abstractmethod
    def descendants(self, pids: Collection[int]) -> frozenset[int]:
        """Return what these processes have started."""


class ForkServer(RankNode):
    """One zygote process, shared by all worlds of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        remove_abandoned()
        self._logs = TemporaryFolder()
        self._count = 0
        self._leaders: set[int] = set()
        self._printed: dict[int, Path] = {}
        atexit.register(self.close)

    @property
    def num_ranks(self) -> int:
        """The ranks that have started and whose end nobody has asked for."""
        return len(self._leaders)

    def start_rank(self, rank: int, config: WorldConfig) -> RankProcess:
        """Forks one rank of a world. Raises InfraError when the zygote cannot start or has
        died.
        """
        ours, theirs = socket.socketpair()
        side, their_side = socket.socketpair()
        with self._lock, theirs, their_side:
            self._count += 1
            path = self._logs.path / f"{self._count}-rank{rank}.log"
            log = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            try:
                fds = [theirs.fileno(), log, their_side.fileno()]
                pid = self._ask(Fork(rank, config), fds).value
            finally:
                os.close(log)
            self._leaders.add(pid)
            self._printed[pid] = path
        return RankProcess(rank, pid, ours, side, self)

    def kill_group(self, pid: int) -> None:
        """Do as :meth:`RankNode.kill_group` does."""
        _kill_group(pid)

    def exit_code(self, pid: int) -> int | None:
        """Do as :meth:`RankNode.exit_code` does."""
        with self._lock:
            self._leaders.discard(pid)
            ended = self._ask(Reap(pid), [])
            if ended.running:
                return None
            if (path := self._printed.pop(pid, None)) is not None:
                path.unlink(missing_ok=True)
            return ended.value

    def ask_stacks(self, pid: int) -> None:
        """Do as :meth:`RankNode.ask_stacks` does."""
        os.kill(pid, signal.SIGUSR1)

    def printed(self, pid: int, start: int = 0) -> bytes:
        """Do as :meth:`RankNode.printed` does."""
        path = self._printed.get(pid)
        return b"" if path is None or not path.exists() else path.read_bytes()[start:]

    def activity(self, pids: Collection[int]) -> dict[int, Threads]:
        """Do as :meth:`RankNode.activity` does."""
        return {pid: activity(pid) for pid in pids}

    def descendants(self, pids: Collection[int]) -> frozenset[int]:
        """Do as :meth:`RankNode.descendants` does."""
        return descendants(pids)

    def import_torch(self) -> None:
        """Starts the zygote, which takes seconds, before a rank is wanted; raises InfraError where
        it cannot start.
        """
        with self._lock:
            if self._control is None:
                self._start()

    def close(self) -> None:
        """Ends the zygote and with it every rank."""
        self.stop_importing()
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._process = self._control = None
        self._logs.remove()

    def stop_importing(self) -> None:
        """Kills a server that still imports torch; whoever waits for it gets an InfraError.

        Takes no lock, which the waiting thread holds.
        """
        if self._control is None and (process := self._process) is not None:
            process.kill()

    def _ask(self, request: Fork | Reap, fds: list[int]) -> Reply:
        if self._control is None:
            self._start()
        assert self._control is not None
        try:
            socket.send_fds(self._control, [msgspec.json.encode(request)], fds)
            data = self._control.recv(1 << 16)
        except OSError as error:
            raise self._lost(str(error)) from error
        if not data:
            raise self._lost("it closed its connection")
        return _reply_decoder.decode(data)

    def _start(self) -> None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fuzzshard.world.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | ENVIRONMENT,
                process_group=0,  # Ctrl-C is for us alone, also before it can ignore that
            )
        data = control.recv(1 << 16)
        reply = (
            _reply_decoder.decode(data) if data else Reply(error="it died while importing torch")
        )
        if reply.error:
            control.close()
            raise InfraError(
                f"the fork server cannot start: {reply.error}", "check the torch installation"
            )
        self._control = control

    def _lost(self, why: str) -> InfraError:
        """Takes leave of a fork server that is gone; the lock is held."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None
        for pid in self._leaders:  # its ranks died with it, but not what they have started
            _kill_group(pid)
        self._leaders.clear()
        return InfraError(
            f"the fork server died: {why}", "run again; out of memory is the usual reason"
        )


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(leader, signal.SIGKILL)


_server: ForkServer | None = None
_server_lock = threading.Lock()


def import_torch_meanwhile() -> None:
    """Starts the fork server in a thread of its own, for a command that will want ranks.

    What goes wrong is told to whoever asks for the first rank.
    """

    def start() -> None:
        with contextlib.suppress(InfraError):
            fork_server().import_torch()

    threading.Thread(target=start, name="fuzzshard-fork-server", daemon=True).start()


def fork_server() -> ForkServer:
    """Return the fork server of this process."""
    global _server
    with _server_lock:
        if _server is None:
            _server = ForkServer()
        return _server
