"""Starting the ranks of a world, up to where all of them have joined; and ending them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fuzzshard.errors import InfraError
from fuzzshard.instruments import OFF
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.messages import Failure, Message, Port, Ready, send
from fuzzshard.world.nodes import end_nodes, node_of
from fuzzshard.world.processes import RankNode, RankProcess, fork_server
from fuzzshard.world.supervise import Inbox

START_SECONDS = 120.0
"""How long ranks may take to join: a first CUDA context and communicator on a loaded machine."""


@dataclasses.dataclass
class Ranks:
    """The live ranks of one world, in order; ``info`` describes their torch and device."""

    processes: list[RankProcess] = dataclasses.field(default_factory=list)
    info: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def pids(self) -> list[int]:
        """Those on this node."""
        return [process.pid for process in self.processes if not process.node.name]

    def alive(self) -> bool:
        """Return whether every rank can go on: none has died, and nobody has stopped one."""
        return all(process.is_alive() for process in self.processes)


_proved: dict[tuple[str, int], str] = {}
"""Which instruments were off, by the device and the size of a world; one process has one torch."""


def start_ranks(config: WorldConfig, ranks: Ranks | None = None) -> Ranks:
    """Return ranks that have joined their world; raises :class:`InfraError` where they cannot.

    The first ones of a size prove the instruments, for all that come after them. ``ranks`` is
    where they are put as they start.
    """
    ranks = Ranks() if ranks is None else ranks
    kind = (config.device, config.size)
    others = [node_of(id, config) for id in config.nodes]
    nodes: list[RankNode] = [fork_server(), *others]
    addresses = (*(other.our_address for other in others[:1]), *(o.address for o in others))
    config = dataclasses.replace(config, instruments_off=_proved.get(kind), addresses=addresses)
    try:
        for rank in range(config.size):
            ranks.processes.append(nodes[config.node_of(rank)].start_rank(rank, config))
        _introduce(ranks)
        if not config.subjects:
            _proved.setdefault(kind, ranks.info.get(OFF, ""))
    except BaseException:
        end_ranks(ranks.processes)
        raise
    return ranks


def let_others_first(pids: Iterable[int], nice: int) -> None:
    """Gives processes this niceness, with all threads that they have; those to come inherit it."""
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


def end_ranks(processes: Iterable[RankProcess]) -> None:
    """Kills ranks and waits for their end."""
    for process in processes:
        process.node.end_rank(process, kill=True)


def kill_ranks(pids: Callable[[], Iterable[int]]) -> None:
    """Kills ranks on this node, of which some may have ended by now, all on other nodes, and a
    fork server that still imports.

    They are asked for after the server, which may just have begun to start them.
    """
    end_nodes()
    fork_server().stop_importing()
    for pid in pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _introduce(ranks: Ranks) -> None:
    """Passes rank 0's store port on and waits until every rank has joined."""
    pending = dict(enumerate(ranks.processes))
    limit = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        for process in ranks.processes:
            selector.register(
                process.channel, selectors.EVENT_READ, (process, Inbox(process.channel))
            )
        while pending:
            events = selector.select(max(0.0, limit - time.monotonic()))
            if not events:
                raise InfraError(
                    f"ranks {sorted(pending)} did not join in {START_SECONDS:.0f} s", "run doctor"
                )
            for key, _ in events:
                process, inbox = key.data
                for message in inbox.take():
                    _introduced(ranks, process, message, pending)


def _introduced(
    ranks: Ranks, process: RankProcess, message: Message | None, pending: dict[int, RankProcess]
) -> None:
    match message:
        case Port():
            for other in ranks.processes[1:]:
                with contextlib.suppress(OSError):  # it has died, which its own channel tells next
                    send(other.channel, message)
        case Ready():
            del pending[process.rank]
            ranks.info = message.info
        case Failure():
            where = process.node.name and f" at {process.node.name}"
            raise InfraError(
                f"rank {process.rank}{where} cannot start: {message.message}", "run doctor"
            )
        case _:
            printed = process.node.printed(process.pid).decode(errors="replace")
            raise InfraError(f"rank {process.rank} died while it started", printed[-300:])
