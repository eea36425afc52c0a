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
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from fuzzshard.errors import InfraError
from fuzzshard.world.config import WorldConfig
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
    """One live rank: its pid, the channel to it, and the file that its output and stacks go to.

    The ``side`` channel leads to a thread of the rank that answers while its main thread waits for
    ever.
    """

    rank: int
    pid: int
    channel: socket.socket
    log: Path
    side: socket.socket

    def log_tail(self, limit: int = 4000) -> str:
        """The end of what the rank printed."""
        return self.log.read_text(errors="replace")[-limit:] if self.log.exists() else ""


class ForkServer:
    """One zygote process, shared by all worlds of this process; safe to use from several
    threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._logs = tempfile.TemporaryDirectory(prefix="fuzzshard-", ignore_cleanup_errors=True)
        self._count = 0
        self._leaders: set[int] = set()
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
            path = Path(self._logs.name) / f"{self._count}-rank{rank}.log"
            log = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            try:
                fds = [theirs.fileno(), log, their_side.fileno()]
                pid = self._ask(Fork(rank, config), fds).value
            finally:
                os.close(log)
            self._leaders.add(pid)
        return RankProcess(rank, pid, ours, path, side)

    def end_rank(self, process: RankProcess, *, kill: bool) -> int:
        """Waits for a rank to end, killing it first if asked; its exit code, negative for a
        signal.

        What it has started dies with it: a rank leads a process group.
        """
        if kill:
            _kill_group(process.pid)
        process.channel.close()
        process.side.close()
        with self._lock:
            self._leaders.discard(process.pid)
        while (ended := self._reap(process.pid)).running:
            time.sleep(REAP_SECONDS)
        process.log.unlink(missing_ok=True)
        return ended.value

    def close(self) -> None:
        """Ends the zygote and with it every rank."""
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._process = self._control = None
        self._logs.cleanup()

    def stop_importing(self) -> None:
        """Kills a server that still imports torch; whoever waits for it gets an InfraError.

        Takes no lock, which the waiting thread holds.
        """
        if self._control is None and (process := self._process) is not None:
            process.kill()

    def _reap(self, pid: int) -> Reply:
        with self._lock:
            return self._ask(Reap(pid), [])

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


def kill_ranks(pids: Callable[[], Iterable[int]]) -> None:
    """Kills ranks, of which some may have ended by now, and a fork server that still imports.

    They are asked for after the server, which may just have begun to start them.
    """
    fork_server().stop_importing()
    for pid in pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


_server: ForkServer | None = None
_server_lock = threading.Lock()


def fork_server() -> ForkServer:
    """The fork server of this process."""
    global _server
    with _server_lock:
        if _server is None:
            _server = ForkServer()
        return _server
