"""The life of one rank process: join the world, run cases until the coordinator hangs up."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import importlib.util
import os
import platform
import re
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec

from fuzzshard.case.relations import variant
from fuzzshard.world.blame import device_error, error_text, machine_trouble
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.device import sleep_while_waiting
from fuzzshard.world.messages import (
    Failure,
    Port,
    Progress,
    RankReport,
    Ready,
    RunCase,
    receive,
    send,
)

if TYPE_CHECKING:
    import torch

_DESYNC = re.compile(
    r"closed by peer|connection reset|broken pipe|timed out|timeout|gloo|nccl|remote process exited"
    r"|connection was likely closed",
    re.IGNORECASE,
)
"""Texts of errors by which a collective, or the store on rank 0, says that it lost its peers."""


def main(channel: socket.socket, rank: int, config: WorldConfig, stacks: TextIO, side: socket.socket) -> None:
    """Runs until the coordinator closes ``channel``; SIGUSR1 dumps every thread's stack into ``stacks``.

    Whoever asks on the ``side`` is told where the rank is, whatever it waits for.
    """
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks)
    try:
        device = _join(channel, rank, config)
    except Exception as error:
        send(channel, _failure("setup", "", error))
        return
    from fuzzshard.training.torch_coverage import new_points

    threading.Thread(target=_answer, args=(side,), name="fuzzshard-side", daemon=True).start()
    while (message := receive(channel)) is not None:
        assert isinstance(message, RunCase)
        reply = msgspec.structs.replace(_run(channel, message, device), points=new_points())
        send(channel, reply)
        if isinstance(reply, Failure):
            _linger(channel)
            return


def _answer(side: socket.socket) -> None:
    """Works while the main thread waits in a collective, which holds no interpreter lock."""
    from fuzzshard.training.flight_recorder import position

    with contextlib.suppress(OSError):  # whoever asked has gone
        while receive(side) is not None:
            send(side, position())
    os._exit(1)


def _linger(channel: socket.socket) -> None:
    """Waits to be killed: leaving now would make the peers fail for another reason than their own."""
    while receive(channel) is not None:
        pass


def _join(channel: socket.socket, rank: int, config: WorldConfig) -> torch.device:
    import torch
    import torch.distributed as dist

    from fuzzshard.engines.mesh import install_group_cache
    from fuzzshard.training import collectives, hooks, torch_coverage

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    if config.device == "cuda":
        sleep_while_waiting(rank)
        torch.cuda.set_device(rank)
    store = _store(channel, rank, config.size)
    dist.init_process_group(
        "nccl" if config.device == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=config.size,
        timeout=datetime.timedelta(minutes=30),
    )
    install_group_cache()
    for number, path in enumerate(config.preload):
        try:
            _preload(path, number)
        except Exception as error:
            raise ImportError(f"{path}, preloaded, raised {type(error).__name__}: {error}") from error
    collectives.install()
    hooks.install()
    if config.coverage:
        torch_coverage.install(every=config.coverage)
    device = torch.device("cuda", rank) if config.device == "cuda" else torch.device("cpu")
    name = platform.processor() or "cpu"
    if config.device == "cuda":
        name = (
            f"cuda ({torch.cuda.get_device_name(rank)})"  # entries tell the kind of device by the first word
        )
    send(
        channel,
        Ready(
            info={
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "device": name,
                "backend": dist.get_backend(),
                "platform": platform.platform(),
            }
        ),
    )
    return device


def _store(channel: socket.socket, rank: int, size: int) -> Any:
    """The rendezvous store; rank 0 listens on a free port and the coordinator passes it on."""
    from torch._C._distributed_c10d import TCPStore

    if rank == 0:
        store = TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        send(channel, Port(port=store.port))
        return store
    message = receive(channel)
    assert isinstance(message, Port)
    return TCPStore("127.0.0.1", message.port, size, is_master=False, wait_for_workers=False)


def _preload(path: str, number: int) -> None:
    """Imports a file and calls its ``apply()`` if it has one."""
    spec = importlib.util.spec_from_file_location(f"fuzzshard_preload_{number}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if hasattr(module, "apply"):
        module.apply()
        _take_up_patches()


def _take_up_patches() -> None:
    """Makes functions that fuzzshard imported by name from torch the ones that torch has now."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if name.startswith("fuzzshard.") else ():
            if isinstance(value, types.FunctionType) and value.__module__.startswith("torch."):
                now = getattr(sys.modules.get(value.__module__), value.__name__, value)
                if now is not value:
                    setattr(module, attribute, now)


def _run(channel: socket.socket, message: RunCase, device: torch.device) -> RankReport | Failure:
    import torch.distributed as dist

    from fuzzshard.engines.fully_shard_state import forget_classes
    from fuzzshard.engines.mesh import prepare_groups, rank_mesh
    from fuzzshard.training.experiment import EngineFailure, Experiment
    from fuzzshard.training.torch_coverage import begin_case

    begin_case()
    forget_classes()
    try:
        prepare_groups(message.case)
        if (changed := variant(message.case)) is not None:
            prepare_groups(changed)
        if dist.get_rank() >= message.case.mesh.size:
            return RankReport(idle=True)
        experiment = Experiment(
            message.case,
            rank_mesh(message.case, device),
            lambda engine: send(channel, Progress(engine=engine)),
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


def lost_peers(error: BaseException) -> bool:
    """Whether an error says that other ranks are gone, and nothing else."""
    return _DESYNC.search(str(error)) is not None


def _failure(
    phase: Literal["setup", "engine", "judge"],
    engine: str,
    error: BaseException,
    op: int = -1,
    expected: str = "",
) -> Failure:
    from fuzzshard.training.experiment import innermost_torch_frame

    text, whole = str(error).strip(), error_text(error)
    machine, kernel = machine_trouble(whole), device_error(whole)
    where = f"a kernel: {kernel}" if kernel else innermost_torch_frame(error)  # it is noticed anywhere, later
    return Failure(
        phase=phase,
        engine=engine,
        op=op,
        message=f"{type(error).__name__}: {text}"[:2000],
        detail=f"{type(error).__name__} in {where}",
        traceback="".join(traceback.format_exception(error))[-8000:],
        machine=machine,
        desync=not (machine or kernel) and lost_peers(error),
        expected=expected,
    )
