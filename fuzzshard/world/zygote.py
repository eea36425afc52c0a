"""The fork server: a process that has imported torch once and forks rank processes from then on.

Run as ``python -m fuzzshard.world.zygote FD``, where FD is a SOCK_SEQPACKET socket to the coordinator.
It never touches a GPU and never starts a thread, so its children start clean. When the coordinator is
gone the socket closes, the zygote exits and the kernel kills its ranks with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from typing import NoReturn

import msgspec

from fuzzshard.world.config import WorldConfig

PRELOADED = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel.distributed",
    "torch._dynamo",
    "fuzzshard.training.experiment",
    "fuzzshard.world.rank",
)
_PR_SET_PDEATHSIG = 1


class Fork(msgspec.Struct, tag="fork", frozen=True):
    """Asks for one rank; its channel and its log file come with the message as file descriptors."""

    rank: int
    config: WorldConfig


class Reap(msgspec.Struct, tag="reap", frozen=True):
    """Asks for the exit status of a child. Whoever asks comes again: nobody may wait for another's rank."""

    pid: int


class Reply(msgspec.Struct, frozen=True):
    """A child's pid (``Fork``) or its exit code, negative for a signal (``Reap``); or an error.

    ``running`` says that the child has no exit code yet.
    """

    value: int = 0
    running: bool = False
    error: str = ""


_decoder = msgspec.json.Decoder(Fork | Reap)
_encoder = msgspec.json.Encoder()


def _become_rank(channel: socket.socket, request: Fork, log: int) -> NoReturn:
    """In the child: leaves nothing of the zygote behind and runs the rank."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from fuzzshard.world import rank

    status = 1
    try:
        with os.fdopen(log, "w") as stacks:
            rank.main(channel, request.rank, request.config, stacks)
        status = 0
    except OSError:
        pass  # the coordinator is gone, and so is the reader of anything said here
    finally:
        os._exit(status)


def _reap(pid: int) -> Reply:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # a child of an earlier fork server, which died with it
        return Reply(-signal.SIGKILL)
    return Reply(os.waitstatus_to_exitcode(status)) if ended else Reply(running=True)


def _serve(control: socket.socket) -> None:
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not data:
            return
        request = _decoder.decode(data)
        if isinstance(request, Reap):
            control.send(_encoder.encode(_reap(request.pid)))
            continue
        channel, log = socket.socket(fileno=fds[0]), fds[1]
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_rank(channel, request, log)
        channel.close()
        os.close(log)
        control.send(_encoder.encode(Reply(pid)))


def main() -> None:
    """Imports torch, says so, and serves until the coordinator hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        for name in PRELOADED:
            importlib.import_module(name)
    except Exception as error:
        control.send(_encoder.encode(Reply(error=f"{type(error).__name__}: {error}")))
        return
    control.send(_encoder.encode(Reply()))
    _serve(control)


if __name__ == "__main__":
    main()
