"""The head of a fleet: the one process that talks with the agents of all nodes, through Ray.

Actors die with the process that made them, and campaigns with their agent. So nothing is left to
clean up when the head is killed, and the same command goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from fuzzshard import reproducer
from fuzzshard.campaign.control import signals_call
from fuzzshard.campaign.exchange import STOP_FILE
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.store import FLEET_FOLDER
from fuzzshard.errors import (
    EXIT_CLEAN,
    EXIT_FINDING,
    EXIT_INTERRUPTED,
    FuzzshardError,
    UsageError,
    worst_exit_code,
)
from fuzzshard.fleet.agent import Agent, Job, Joined, Report, differences, versions
from fuzzshard.fleet.cluster import (
    ActorGone,
    ClusterNode,
    answer,
    answered,
    cluster_nodes,
    connected,
    end_actor,
    first_line,
    make_actor,
)
from fuzzshard.fleet.gathered import Gathered, campaign_of
from fuzzshard.fleet.mirror import Snapshot, check_node_name
from fuzzshard.journal.lock import locked
from fuzzshard.report.exchange_status import exchange_lines, read_exchange
from fuzzshard.report.stages import clock

SECONDS_BETWEEN = 3.0
"""Between the answer of an agent and the next call."""
LOOK_SECONDS = 2.0
"""How often the head looks which nodes the cluster has."""
STOP_SECONDS = 90.0
"""How long campaigns may take to end before they are killed."""
BUSY_SECONDS = 60.0
"""How long an agent may wait for the GPUs or CPUs of its node before that is said."""
MAX_ATTEMPTS = 5
"""As many agents that die in a row before they answer say that the node cannot run any."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """``options``, without a seed, are those of ``fuzzshard run`` on each node; ``max_nodes``
    nodes at most take part at once. ``world_nodes`` of them run one campaign, whose worlds lie on
    all of these.
    """

    corpus: Path
    options: tuple[str, ...]
    seed: int | None = None
    address: str = "auto"
    max_nodes: int | None = None
    world_nodes: int = 1
    local: str = ""


def run_fleet(options: FleetOptions) -> int:
    """Run a campaign on every node of the cluster, and return the exit code.

    It is that of ``fuzzshard run``: 1 where a finding came that the corpus did not have, 130 after
    Ctrl-C or SIGTERM, and otherwise the worst of the nodes. Raises :class:`UsageError` where there
    is no cluster, or none of its nodes can take part, and :class:`InfraError` where the disk is
    still full at the end.
    """
    fleet, began = options.corpus / FLEET_FOLDER, time.monotonic()

    def say(line: str) -> None:
        print(f"{clock(time.monotonic() - began)}  {line}", flush=True)

    with connected(options.address) as cluster, locked(fleet):
        (fleet / STOP_FILE).unlink(missing_ok=True)
        campaign = campaign_of(options.corpus)
        gathered = Gathered(options.corpus, reproducer.scripts, say)
        code = _Head(options, cluster, campaign, gathered, say).run()
    print(*exchange_lines(fleet, *read_exchange(fleet)), sep="\n", flush=True)
    gathered.check_saved()
    return code


@dataclasses.dataclass(eq=False)
class _Member:
    """A node of the cluster and its agent. ``call`` is the one in flight; the next one comes at
    ``due``. ``heard`` is what its agent was given of what others told.

    ``leader`` is the node whose campaign uses this one, which has no agent then; itself for one
    that runs a campaign, and None for one that waits until there are enough for another campaign.
    """

    node: ClusterNode
    agent: Any = None
    call: Any = None
    doing: Literal["greet", "wait", "place", "sync"] = "greet"
    state: Literal["starting", "running", "ended", "lost", "left out"] = "starting"
    name: str = ""
    leader: _Member | None = None
    due: float = 0.0
    began: float = 0.0
    attempts: int = 0
    heard: dict[str, Snapshot] | None = None
    restarts: int = 0
    code: int = EXIT_CLEAN
    is_first: bool = True
    problem: str = ""

    @property
    def label(self) -> str:
        return self.node.label


class _Head:
    """The loop over all agents. None of them can hold up the others: calls are only waited for
    together.
    """

    def __init__(
        self,
        options: FleetOptions,
        cluster: str,
        campaign: str,
        gathered: Gathered,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._cluster, self._campaign = options, cluster, campaign
        self._gathered, self._say = gathered, say
        self._session = secrets.token_hex(8)
        self._stop_file = options.corpus / FLEET_FOLDER / STOP_FILE
        self._members: dict[str, _Member] = {}
        self._names: set[str] = set()
        self._next_look = 0.0
        self._stop_by = math.inf
        self._interrupted = False
        self._waits = False

    def run(self) -> int:
        with signals_call(self._on_signal):
            while not self._is_over():
                self._look_whether_to_stop()
                self._look_for_nodes()
                for member in self._in("starting", "running"):
                    self._call(member)
                self._hear()
                self._form_groups()
                self._gathered.save()
        for member in self._in("starting", "running"):
            self._say(f"{member.name or member.label} did not end in time and is killed")
        self._gathered.finish()
        return self._exit_code()

    def _on_signal(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    @property
    def _is_stopping(self) -> bool:
        return self._stop_by < math.inf

    def _look_whether_to_stop(self) -> None:
        """Ends all campaigns after an interrupt or where there is a stop file."""
        if self._is_stopping or not (self._interrupted or self._stop_file.exists()):
            return
        self._stop_by = time.monotonic() + STOP_SECONDS
        with contextlib.suppress(FuzzshardError):
            write_atomic(self._stop_file, b"")
        why = "interrupted" if self._interrupted else f"{self._stop_file} is there"
        running = sum(member.leader is member for member in self._in("running"))
        self._say(f"{why}: {running} campaigns are ending")
        for member in self._in("starting", "running"):
            member.due = 0.0
            if member.state == "starting" and member.doing in ("greet", "wait"):
                self._leave(member, "left out")

    def _look_for_nodes(self) -> None:
        if self._is_stopping or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        nodes = cluster_nodes()
        for member in self._in("starting", "running"):
            if member.node.id not in nodes:
                self._lose(member, "its node is gone")
                member.state = "lost"
                self._dissolve(member)
        for id, node in nodes.items():
            has_room = any(node.resources.get(kind, 0) >= 1 for kind in ("GPU", "CPU"))
            taking_part = len(self._in("starting", "running", "ended"))
            limit = self._options.max_nodes or math.inf
            if has_room and id not in self._members and taking_part < limit:
                self._members[id] = _Member(node)
        if not (self._members or self._gathered.has_nodes):
            raise UsageError("no node of the cluster has a CPU or a GPU", "add one")
        there, number = self._waiting(), self._options.world_nodes
        is_left_alone = bool(there or self._in("lost")) or not self._members
        waits = is_left_alone and not (self._busy() or self._in("ended"))
        if waits and not self._waits:
            self._say(
                f"worlds need {number} nodes, and {len(there)} can be had; the fleet waits"
                if there
                else "no node is left; the fleet waits for one"
            )
        self._waits = waits

    def _form_groups(self) -> None:
        """Gives campaigns the nodes that they lack, and makes others of those that are left.

        Where nobody is free, one of the campaigns that lack a node waits for another time.
        """
        missing = {m: self._missing(m) for m in self._in("starting", "running") if m.leader is m}
        free = [member for member in self._waiting() if member.leader is None]
        for leader, number in missing.items():
            for member in free[:number]:
                member.leader = leader
            del free[:number]
        while len(free) >= self._options.world_nodes:
            for member in free[: self._options.world_nodes]:
                member.leader = free[0]
            del free[: self._options.world_nodes]
        for member in self._waiting():
            if member.leader is member:
                member.doing = "place"
            elif member.leader is not None:
                self._lend(member, member.leader)
        lacking = [leader for leader in missing if self._missing(leader)]
        if len(lacking) > 1 and not self._in("starting"):
            self._begin_again(lacking[-1])

    def _missing(self, leader: _Member) -> int:
        """Return how many nodes its worlds lack."""
        return self._options.world_nodes - 1 - len(self._lenders(leader))

    def _lenders(self, leader: _Member) -> list[_Member]:
        return [m for m in self._members.values() if m.leader is leader and m is not leader]

    def _lend(self, member: _Member, leader: _Member) -> None:
        """Leaves a node to the campaign of another one, which makes an actor of its own there."""
        end_actor(member.agent)
        member.agent, member.state = None, "running"
        to, power = leader.name or leader.label, _power(member.node.resources)
        self._say(f"{member.label} lends its ranks to {to}: {power}")

    def _others(self, leader: _Member) -> tuple[str, ...] | None:
        """Where its worlds lie beside its own node; None as long as a node is missing."""
        others = tuple(member.node.id for member in self._lenders(leader))
        return None if self._missing(leader) else others

    def _dissolve(self, member: _Member) -> None:
        """One that is gone, or taken for something else, has no group any more."""
        leader, member.leader = member.leader, None
        if leader is member:
            for lender in self._lenders(member):
                lender.leader = None
                self._begin_again(lender)
        elif leader is not None and not self._is_stopping:
            self._say(f"{leader.name or leader.label} waits for another node")

    def _begin_again(self, member: _Member) -> None:
        """Ends what its agent does, and makes another one."""
        self._dissolve(member)
        end_actor(member.agent)
        member.agent = member.call = None
        member.state, member.doing, member.heard, member.due = "starting", "greet", None, 0.0
        if self._is_stopping:
            member.state = "lost"

    def _call(self, member: _Member) -> None:
        """Calls the agent if it is time, and makes it if there is none."""
        now = time.monotonic()
        if member.call is not None:
            if member.doing == "greet" and member.began and now > member.began + BUSY_SECONDS:
                member.began = 0.0
                self._say(f"{member.label}: waits until its GPUs or CPUs are free")
            return
        if now < member.due or member.doing == "wait":
            return
        if member.agent is None:
            member.agent = make_actor(Agent, member.node)
            member.doing, member.began = "greet", now
        if member.doing == "greet":
            member.call = member.agent.greet.remote()
            return
        job = Job(
            options=self._options_of(member),
            seed=self._options.seed,
            cluster=self._cluster,
            local=self._options.local,
            campaign=self._campaign,
            session=self._session,
            node=member.node.id,
        )
        if member.doing == "place":
            member.call = member.agent.join.remote(job)
        else:
            told, member.heard = self._gathered.since(member.heard, member.name)
            others = self._others(member)
            member.call = member.agent.sync.remote(told, self._is_stopping, others)

    def _options_of(self, member: _Member) -> tuple[str, ...]:
        """Return those of the campaign; one that returns goes on with what it began."""
        returns = bool(member.name)
        return tuple(o for o in self._options.options if not (returns and o == "--fresh"))

    def _hear(self) -> None:
        """Takes the answers that have come within a second."""
        waiting = {
            member.call: member for member in self._in("starting", "running") if member.call
        }
        if not waiting:
            time.sleep(0.1)
            return
        for call in answered(list(waiting)):
            member = waiting[call]
            member.call, member.due = None, time.monotonic() + SECONDS_BETWEEN
            try:
                self._take(member, answer(call))
            except FuzzshardError as error:
                self._fail(member, error)
            except ActorGone as error:
                self._lose_agent(member, error)

    def _take(self, member: _Member, answer: Any) -> None:
        if member.doing == "greet":
            self._take_greeting(member, *answer)
        elif member.doing == "place":
            self._take_place(member, answer)
        else:
            self._take_report(member, answer)

    def _take_greeting(self, member: _Member, host: str, theirs: dict[str, str]) -> None:
        if different := differences(versions(), theirs, "the head"):
            self._say(f"{host} is left out: {different}")
            self._leave(member, "left out")
            return
        member.doing, member.due = "wait", 0.0

    def _take_place(self, member: _Member, joined: Joined) -> None:
        check_node_name(joined.name)
        if any(other.name == joined.name for other in self._in("running", "ended")):
            self._say(f"{member.label} is left out: another node is named {joined.name}, too")
            self._leave(member, "left out")
            return
        returns = joined.name in self._names
        self._names.add(joined.name)
        member.name, member.state, member.doing = joined.name, "running", "sync"
        member.due, member.attempts, member.restarts = 0.0, 0, 0
        member.is_first = True
        if joined.is_new:
            self._gathered.begin(joined.name)
        verb = "returned" if returns else "joined"
        self._say(f"{joined.name} {verb}: {_power(member.node.resources)}, {joined.slot}")

    def _take_report(self, member: _Member, report: Report) -> None:
        self._gathered.take(member.name, report.changes, is_all=member.is_first)
        member.is_first = False
        if report.restarts > member.restarts:
            self._say(f"{member.name}: its campaign was killed and goes on")
        member.restarts = report.restarts
        if report.problem and not member.problem:
            self._say(f"{member.name}: {report.problem}; it goes on")
        member.problem = report.problem
        if report.code is not None:
            member.code = report.code
            lines = [line for line in report.log.splitlines() if line.startswith("fuzzshard:")]
            why = f": {lines[-1].removeprefix('fuzzshard:').strip()}" if lines else ""
            self._say(f"{member.name} ended with exit code {report.code}{why}")
            for each in (*self._lenders(member), member):
                each.leader, each.code = None, report.code
                self._leave(each, "ended")

    def _fail(self, member: _Member, error: FuzzshardError) -> None:
        """Leaves out a node whose agent cannot do what it was asked to; one that runs goes on."""
        why = first_line(error)
        if member.doing == "sync":
            if member.problem != why:
                self._say(f"{member.name}: {why}; it goes on")
            member.problem = why
            return
        self._say(f"{member.label} is left out: {why}")
        self._leave(member, "left out")

    def _lose_agent(self, member: _Member, error: ActorGone) -> None:
        """Makes another agent for a node whose agent is gone, unless that never works."""
        if lacks := re.search(r"No module named '([^'.]+)", str(error)):
            self._say(f"{member.label} is left out: it has no {lacks[1]}; install fuzzshard there")
            self._leave(member, "left out")
            return
        member.attempts += 1
        if member.attempts >= MAX_ATTEMPTS:
            self._say(f"{member.label} is left out: {first_line(error)}")
            self._leave(member, "left out")
            return
        self._lose(member, "its agent is gone")
        member.state, member.heard = "starting", None
        member.due = time.monotonic() + SECONDS_BETWEEN * (member.attempts - 1) ** 2
        if self._is_stopping:
            member.state = "lost"
            self._dissolve(member)

    def _lose(self, member: _Member, why: str) -> None:
        if member.state == "running":
            self._say(f"{member.name or member.label} is lost: {why}")
        member.agent = member.call = None

    def _leave(self, member: _Member, state: Literal["ended", "left out"]) -> None:
        """Ends the agent, which gives its GPUs and CPUs back."""
        member.state, member.call = state, None
        end_actor(member.agent)
        member.agent = None
        self._dissolve(member)

    def _in(self, *states: str) -> list[_Member]:
        return [member for member in self._members.values() if member.state in states]

    def _waiting(self) -> list[_Member]:
        """Return the nodes that lack others for a campaign."""
        return [member for member in self._in("starting") if member.doing == "wait"]

    def _busy(self) -> list[_Member]:
        waiting = self._waiting()
        return [m for m in self._in("starting", "running") if m not in waiting]

    def _is_over(self) -> bool:
        if self._is_stopping:
            return not self._in("starting", "running") or time.monotonic() > self._stop_by
        if self._busy() or not self._members:
            return False
        return bool(self._in("ended")) or not (self._in("lost") or self._waiting())

    def _exit_code(self) -> int:
        codes = {member.code for member in self._in("ended")}
        if not codes and self._in("left out") and not self._is_stopping:
            raise UsageError("no node is left to run on", "see above why")
        return exit_code(codes, interrupted=self._interrupted, is_new=self._gathered.is_new)


def exit_code(codes: Collection[int], *, interrupted: bool, is_new: bool) -> int:
    """Return the exit code of a fleet whose campaigns ended with ``codes``."""
    if interrupted:
        return EXIT_INTERRUPTED
    return worst_exit_code((*codes, *[EXIT_FINDING] * is_new))


def _power(resources: Mapping[str, float]) -> str:
    gpus = int(resources.get("GPU", 0))
    count, kind = (gpus, "GPU") if gpus else (int(resources.get("CPU", 0)), "CPU")
    return f"{count} {kind}{'' if count == 1 else 's'}"
