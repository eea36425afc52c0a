"""The life of one rank process: join the world, run cases until the coordinator hangs up."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Literal, TextIO

import msgspec

from fuzzshard.world.blame import device_error, error_text, machine_trouble
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.join import join
from fuzzshard.world.messages import (
    CheckReport,
    CheckSubject,
    EngineEntered,
    Failure,
    RankReport,
    RunCase,
    Tripped,
    receive,
    send,
)

if TYPE_CHECKING:
    import torch

    from fuzzshard.subject.run import Check

_DESYNC = re.compile(
    r"closed by peer|connection reset|broken pipe|timed out|timeout|gloo|remote process exited"
    r"|connection was likely closed|nccl(?:remote|internal|system)error|nccl communicator was "
    r"aborted",
    re.IGNORECASE,
)
"""Texts of errors by which a collective, or the store on rank 0, says that it lost its peers.

NCCL may call a lost peer an internal error (NVIDIA/nccl issue 795); ``ncclInvalidUsage``, or a
word about a communicator that is not there yet, is an error of its own.
"""


def main(
    channel: socket.socket, rank: int, config: WorldConfig, stacks: TextIO, side: socket.socket
) -> None:
    """Runs until the coordinator closes ``channel``; SIGUSR1 dumps every thread's stack into
    ``stacks``.

    Whoever asks on the ``side`` is told where the rank is, whatever it waits for.
    """
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks)
    try:
        device = join(channel, rank, config)
    except Exception as error:
        send(channel, _failure("setup", "", error))
        return
    from fuzzshard.mending.patch import Mended
    from fuzzshard.mending.trips import forget_trips, listen
    from fuzzshard.training.housekeeping import clean_up, clear_caches

    doing = _Doing()
    answering = threading.Thread(
        target=_answer, args=(side, doing), name="fuzzshard-side", daemon=True
    )
    answering.start()
    mended = Mended()
    listen(lambda cause: send(channel, Tripped(cause=cause)))
    while (message := receive(channel)) is not None:
        assert isinstance(message, RunCase | CheckSubject)
        reply: RankReport | CheckReport | Failure
        if isinstance(message, CheckSubject):
            reply = _check(message, device, doing)
        else:
            forget_trips()
            try:
                if mended.switch(message.mends, compiles=message.case.compile is not None):
                    clear_caches()
            except Exception as error:
                reply = _failure("judge", "", error)
            else:
                reply = _run(channel, message, device)
            if isinstance(reply, RankReport):
                reply = msgspec.structs.replace(reply, ran=mended.ran())
        send(channel, reply)
        if isinstance(reply, Failure):
            _linger(channel)
            return
        if isinstance(message, RunCase):
            clean_up(message.case)


class _Doing:
    """The check of a model of the user's own that runs."""

    check: Check | None = None

    def __str__(self) -> str:
        return self.check.where if self.check is not None else ""


def _answer(side: socket.socket, doing: _Doing) -> None:
    """Works while the main thread waits in a collective, which holds no interpreter lock."""
    from fuzzshard.world.flight_recorder import position

    with contextlib.suppress(OSError):  # whoever asked has gone
        while receive(side) is not None:
            send(side, msgspec.structs.replace(position(), doing=str(doing)))
    os._exit(1)


def _linger(channel: socket.socket) -> None:
    """Waits to be killed: leaving now would make the peers fail for another reason than their
    own.
    """
    while receive(channel) is not None:
        pass


def _run(channel: socket.socket, message: RunCase, device: torch.device) -> RankReport | Failure:
    import torch.distributed as dist

    from fuzzshard.engines.mesh import prepare_groups, rank_mesh, ranks_of
    from fuzzshard.world.experiment import EngineFailure, Experiment

    try:
        prepare_groups(message.case)
        if dist.get_rank() not in ranks_of(message.case.mesh):
            return RankReport(idle=True)
        experiment = Experiment(
            message.case,
            rank_mesh(message.case, device),
            lambda engine: send(channel, EngineEntered(engine=engine)),
        )
        if message.bare:
            experiment.run_bare()
            return RankReport()
        return experiment.run()
    except EngineFailure as failure:
        cause = failure.__cause__ or failure
        raised = _failure("engine", failure.engine, cause, failure.op, failure.expected)
        return msgspec.structs.replace(raised, findings=failure.findings)
    except Exception as error:
        return _failure("judge", "", error)


def _check(message: CheckSubject, device: torch.device, doing: _Doing) -> CheckReport | Failure:
    from torch.distributed.checkpoint.api import CheckpointException

    from fuzzshard.subject.functions import SubjectError, is_ours
    from fuzzshard.subject.run import Check

    sys.path += [folder for folder in message.path if folder not in sys.path]
    check: Check | None = None
    try:
        doing.check = check = Check(message.subject, message.training, device)
        return CheckReport(checked=check.run())
    except SubjectError as error:
        return _failure("subject", error.what, error)
    except (Exception, CheckpointException) as raised:
        gathered = getattr(raised, "failures", None)  # of ranks that save or load
        cause = gathered[min(gathered)][0] if gathered else raised
        lost = lost_peers(cause)  # in a call of ours, too, where ranks run other collectives
        phase: Literal["engine", "judge"] = "judge" if is_ours(cause) and not lost else "engine"
        failure = _failure(phase, check.where if check else "", cause)
        warned = tuple(check.warned) if check else ()
        return msgspec.structs.replace(failure, warned=warned)
    finally:
        doing.check = None


def lost_peers(error: BaseException) -> bool:
    """Return whether an error says that other ranks are gone, and nothing else."""
    return _DESYNC.search(str(error)) is not None


def _failure(
    phase: Literal["setup", "engine", "judge", "subject"],
    engine: str,
    error: BaseException,
    op: int = -1,
    expected: str = "",
) -> Failure:
    from fuzzshard.world.experiment import innermost_torch_frame

    text, whole = str(error).strip(), error_text(error)
    machine, kernel = machine_trouble(whole), device_error(whole)
    return Failure(
        phase=phase,
        engine=engine,
        op=op,
        message=f"{type(error).__name__}: {text}"[:2000],
        detail=f"{type(error).__name__} in {innermost_torch_frame(error)}",
        traceback="".join(traceback.format_exception(error))[-8000:],
        machine=machine,
        kernel=kernel,
        desync=not (machine or kernel) and lost_peers(error),
        expected=expected,
    )
