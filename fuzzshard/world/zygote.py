"""The fork server: a process that has imported torch once and forks rank processes from then on.

Run as ``python -m fuzzshard.world.zygote FD``, where FD is a SOCK_SEQPACKET socket to the
coordinator. It never touches a GPU and never starts a thread, so its children start clean.

When the coordinator is gone the socket closes, and the zygote ends with everything that ranks have
started; while it still imports torch the kernel ends it. When the zygote is gone the kernel kills
its ranks. What a rank has started and left behind becomes a child of the zygote, prctl(2),
PR_SET_CHILD_SUBREAPER, and ends when the rank is reaped.

Ctrl-C goes to a whole process group, and so may the SIGTERM of timeout(1), of schedulers and of
systemd. The coordinator answers, which still wants its ranks then: zygote and ranks ignore both.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import signal
import socket
import sys
from typing import NoReturn

import msgspec

from fuzzshard.guard import adopt_orphans, die_with_parent, end_children
from fuzzshard.mending.mend import mends_for
from fuzzshard.world.config import WorldConfig

PRELOADED = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel.distributed",
    "torch._dynamo",
    "fuzzshard.world.proofs",
    "fuzzshard.world.rank",
)


class Fork(msgspec.Struct, tag="fork", frozen=True):
    """Asks for one rank; its channel, its log file and its side channel come as file
    descriptors.
    """

    rank: int
    config: WorldConfig


class Reap(msgspec.Struct, tag="reap", frozen=True):
    """Asks for the exit status of a child. Whoever asks comes again: nobody may wait for another's
    rank.
    """

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


def _become_rank(channel: socket.socket, request: Fork, log: int, side: socket.socket) -> NoReturn:
    """In the child: leaves nothing of the zygote behind and runs the rank."""
    die_with_parent()
    os.dup2(log, 1)
    os.dup2(log, 2)
    from fuzzshard.world import rank

    status = 1
    try:
        with os.fdopen(log, "w") as stacks:
            rank.main(channel, request.rank, request.config, stacks, side)
        status = 0
    except OSError:
        pass  # the coordinator is gone, and so is the reader of anything said here
    finally:
        os._exit(status)


@functools.cache
def _prepare_mends() -> None:
    """Before the first rank that may need them; what fails here is told when it is applied."""
    with contextlib.suppress(Exception):
        importlib.import_module("fuzzshard.mending.patch").prepare(mends_for())


def _reap(pid: int, ranks: set[int]) -> Reply:
    """Return how the rank ``pid`` ended, if it has; with it ends what it has started."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # a child of an earlier fork server, which died with it
        return Reply(-signal.SIGKILL)
    if not ended:
        return Reply(running=True)
    ranks.discard(pid)
    end_children(but=ranks)
    return Reply(os.waitstatus_to_exitcode(status))


def _serve(control: socket.socket) -> None:
    adopt_orphans()
    gc.freeze()
    gc.enable()
    ranks: set[int] = set()
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not data:
            return end_children()
        request = _decoder.decode(data)
        if isinstance(request, Reap):
            control.send(_encoder.encode(_reap(request.pid, ranks)))
            continue
        if not request.config.subjects:
            _prepare_mends()
        channel, log, side = socket.socket(fileno=fds[0]), fds[1], socket.socket(fileno=fds[2])
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            control.close()
            _become_rank(channel, request, log, side)
        os.setpgid(pid, pid)  # whoever comes first: from now on both may rely on it
        ranks.add(pid)
        channel.close()
        side.close()
        os.close(log)
        control.send(_encoder.encode(Reply(pid)))


def main() -> None:
    """Imports torch, says so, and serves until the coordinator hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()  # the thread that has started us waits until we have imported torch
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(BlockingIOError):  # it may have died before we asked to die with it
        control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return
    gc.disable()  # looking for garbage takes a sixth of the time of these imports
    try:
        for name in PRELOADED:
            importlib.import_module(name)
        importlib.import_module("fuzzshard.world.join").imported_functions()
    except Exception as error:
        control.send(_encoder.encode(Reply(error=f"{type(error).__name__}: {error}")))
        return
    die_with_parent(0)
    control.send(_encoder.encode(Reply()))
    _serve(control)


if __name__ == "__main__":
    main()
