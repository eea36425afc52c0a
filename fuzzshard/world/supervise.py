"""One case on live ranks: sends it, collects what they say, and tells when they hang."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence

from fuzzshard.world.blame import oom_kills
from fuzzshard.world.deadline import WATCH_SECONDS, IdleWatch
from fuzzshard.world.merge import Outcome
from fuzzshard.world.messages import (
    Ask,
    Channel,
    CheckReport,
    CheckSubject,
    EngineEntered,
    Failure,
    Message,
    Position,
    RankReport,
    RunCase,
    Tripped,
    decoded,
    send,
)
from fuzzshard.world.processes import RankNode, RankProcess

GRACE_SECONDS = 1.0
"""After the first rank failed or died, how long the others may still say what happened to them."""

HARD_SECONDS = 20.0
"""How long after its deadline a case may go on while its ranks use processor time: on CUDA, where
ranks that wait may use some, and everywhere if the caller has set the deadline.
"""

WORKING_SECONDS = 300.0
"""The same on the CPU, and for a case that compiles. Dynamo may trace a large model again for
every forward, and DTensor looks for placements on three axes: either took four ranks on two cores
more than a minute.
"""

POLL_SECONDS = 0.1


def supervise(
    ranks: Sequence[RankProcess],
    request: RunCase | CheckSubject,
    suspect: float,
    patience: float,
) -> Outcome:
    """Sends the case to every rank and collects reports until all have reported or hang.

    From the time ``suspect`` on, ranks that use no processor time count as hung; ranks that do
    (a busy machine, an endless loop) get ``patience`` seconds more.
    """
    outcome = Outcome(len(ranks))
    oom_kills_before = oom_kills()
    with selectors.DefaultSelector() as selector:
        _send_to_all(ranks, request, selector, outcome)
        watches: list[IdleWatch] = []
        while outcome.waiting():
            now = time.monotonic()
            if outcome.lost and now >= outcome.first_loss + GRACE_SECONDS:
                break
            if now >= suspect - WATCH_SECONDS and not outcome.lost:
                watches = watches or _watches([ranks[rank] for rank in outcome.waiting()])
                if _is_over(watches, outcome, now - suspect, patience):
                    break
            for key, _ in selector.select(POLL_SECONDS):
                rank, inbox = key.data
                if any(_heard(rank, message, outcome) for message in inbox.take()):
                    selector.unregister(key.fileobj)
    outcome.out_of_memory = bool(outcome.dead) and oom_kills() > oom_kills_before
    return outcome


def _send_to_all(
    ranks: Sequence[RankProcess],
    request: RunCase | CheckSubject,
    selector: selectors.BaseSelector,
    outcome: Outcome,
) -> None:
    for process in ranks:
        try:
            send(process.channel, request)
        except OSError:
            outcome.die(process.rank)
        else:
            inbox = Inbox(process.channel)
            selector.register(process.channel, selectors.EVENT_READ, (process.rank, inbox))


def _watches(ranks: Sequence[RankProcess]) -> list[IdleWatch]:
    """One on each node that has some of these ranks."""
    nodes: dict[RankNode, dict[int, int]] = {}
    for process in ranks:
        nodes.setdefault(process.node, {})[process.rank] = process.pid
    return [IdleWatch(pids, node.activity, node.descendants) for node, pids in nodes.items()]


def _is_over(
    watches: Sequence[IdleWatch], outcome: Outcome, overdue: float, patience: float
) -> bool:
    """Return whether to wait no longer, ``overdue`` seconds after the deadline."""
    stopped: set[int] = set()
    for watch in watches:
        watch.look()
        for rank in watch.dead & outcome.waiting():  # its children may hold its channel open
            outcome.die(rank)
        stopped |= watch.stopped()
    outcome.stopped = frozenset(stopped)
    if overdue < 0 or outcome.lost:
        return False
    if overdue >= patience or outcome.stopped & outcome.waiting():
        return True
    return all(watch.is_idle() for watch in watches)


def _heard(rank: int, message: Message | None, outcome: Outcome) -> bool:
    """Takes one message; whether it was the last one of this rank for this case."""
    match message:
        case EngineEntered():
            outcome.engines[rank] = message.engine
            return False
        case Tripped():
            outcome.tripped.add(message.cause)
            return False
        case RankReport():
            outcome.reports[rank] = message
        case CheckReport():
            outcome.checks[rank] = message
        case Failure():
            outcome.fail(rank, message)
        case _:
            outcome.die(rank)
    return True


def ask_positions(ranks: Sequence[RankProcess], until: float) -> dict[int, Position]:
    """Return where the ranks are that answer in time."""
    positions: dict[int, Position] = {}
    with selectors.DefaultSelector() as selector:
        for process in ranks:
            selector.register(
                process.side, selectors.EVENT_READ, (process.rank, Inbox(process.side))
            )
            with contextlib.suppress(OSError):
                send(process.side, Ask())
        while selector.get_map() and (events := selector.select(until - time.monotonic())):
            for key, _ in events:
                rank, inbox = key.data
                for answer in inbox.take():
                    selector.unregister(key.fileobj)
                    if isinstance(answer, Position):
                        positions[rank] = answer
    return positions


_CHUNK = 1 << 20


class Inbox:
    """What has come through a channel, of which the last message may be a part only.

    A rank may stop for ever in the middle of a message that no buffer of a socket holds. Whoever
    waits for several ranks, or has a deadline, may not wait for the rest of it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._data = bytearray()

    def take(self) -> list[Message | None]:
        """Return the messages that are whole by now; None when the peer closed its end. It never
        waits.
        """
        try:
            chunk = self._channel.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:  # reset, or no answer from its node
            chunk = b""
        if not chunk:
            return [None]
        self._data += chunk
        return list(decoded(self._data))
