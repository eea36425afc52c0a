"""The coordinator's side of the fork server: starts rank processes, kills them, learns how they ended."""

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
from pathlib import Path

import msgspec

from fuzzshard.errors import InfraError
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.zygote import Fork, Reap, Reply

_reply_decoder = msgspec.json.Decoder(Reply)

REAP_SECONDS = 0.005
"""Between two questions whether a rank has ended: one without CUDA takes about as long to die."""


@dataclasses.dataclass
class RankProcess:
    """One live rank: its pid, the channel to it, and the file that its output and stacks go to."""

    rank: int
    pid: int
    channel: socket.socket
    log: Path

    def log_tail(self, limit: int = 4000) -> str:
        """The end of what the rank printed."""
        return self.log.read_text(errors="replace")[-limit:] if self.log.exists() else ""


class ForkServer:
    """One zygote process, shared by all worlds of this process; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._logs = tempfile.TemporaryDirectory(prefix="fuzzshard-", ignore_cleanup_errors=True)
        self._count = 0
        atexit.register(self.close)

    def start_rank(self, rank: int, config: WorldConfig) -> RankProcess:
        """Forks one rank of a world. Raises InfraError when the zygote cannot start or has died."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            self._count += 1
            path = Path(self._logs.name) / f"{self._count}-rank{rank}.log"
            log = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            try:
                pid = self._ask(Fork(rank, config), [theirs.fileno(), log]).value
            finally:
                os.close(log)
        return RankProcess(rank, pid, ours, path)

    def end_rank(self, process: RankProcess, *, kill: bool) -> int:
        """Waits for a rank to end, killing it first if asked; its exit code, negative for a signal."""
        if kill:
            with contextlib.suppress(ProcessLookupError):  # it died with its fork server
                os.kill(process.pid, signal.SIGKILL)
        process.channel.close()
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
                env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
            )
        data = control.recv(1 << 16)
        reply = _reply_decoder.decode(data) if data else Reply(error="it died while importing torch")
        if reply.error:
            control.close()
            raise InfraError(f"the fork server cannot start: {reply.error}", "check the torch installation")
        self._control = control

    def _lost(self, why: str) -> InfraError:
        self._process = self._control = None
        return InfraError(f"the fork server died: {why}", "run again; out of memory is the usual reason")


_server: ForkServer | None = None
_server_lock = threading.Lock()


def fork_server() -> ForkServer:
    """The fork server of this process."""
    global _server
    with _server_lock:
        if _server is None:
            _server = ForkServer()
        return _server
