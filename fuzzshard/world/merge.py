"""From what the ranks said to one verdict."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.oracles import ORACLES, losing
from fuzzshard.verdict import Compared, Finding, Status, Verdict, first_findings
from fuzzshard.world.blame import death_trouble, device_error, signal_name
from fuzzshard.world.desync import describe_hang, latest
from fuzzshard.world.messages import CheckReport, Failure, Position, RankReport

MOST_FINDINGS = 24


@dataclasses.dataclass
class Outcome:
    """Everything heard of the ranks of a world in one case, or in a check of a user's model.

    ``lost_nodes`` has the nodes of ranks that are lost with them. ``tripped`` are causes that
    tripwires told of, ``stopped`` ranks that a signal or a debugger holds, ``positions`` are of
    ranks that wait, and ``out_of_memory`` says that the kernel has killed processes for want of
    memory meanwhile.
    """

    size: int
    reports: dict[int, RankReport] = dataclasses.field(default_factory=dict)
    checks: dict[int, CheckReport] = dataclasses.field(default_factory=dict)
    failures: dict[int, Failure] = dataclasses.field(default_factory=dict)
    dead: set[int] = dataclasses.field(default_factory=set)
    exits: dict[int, int] = dataclasses.field(default_factory=dict)
    engines: dict[int, str] = dataclasses.field(default_factory=dict)
    stacks: dict[int, str] = dataclasses.field(default_factory=dict)
    positions: dict[int, Position] = dataclasses.field(default_factory=dict)
    lost_nodes: dict[int, str] = dataclasses.field(default_factory=dict)
    tripped: set[str] = dataclasses.field(default_factory=set)
    stopped: frozenset[int] = frozenset()
    out_of_memory: bool = False
    first_loss: float = 0.0

    def waiting(self) -> set[int]:
        """Return the ranks that have neither reported nor failed nor died."""
        said = self.reports.keys() | self.checks.keys() | self.failures.keys()
        return set(range(self.size)) - said - self.dead

    @property
    def lost(self) -> bool:
        """Whether the ranks are of no further use."""
        return bool(self.failures or self.dead)

    def fail(self, rank: int, failure: Failure) -> None:
        """Note that a rank raised."""
        self.failures[rank] = failure
        self._mark()

    def die(self, rank: int) -> None:
        """Note that a rank closed its channel without a word."""
        self.dead.add(rank)
        self._mark()

    def _mark(self) -> None:
        self.first_loss = self.first_loss or time.monotonic()


def merge(case: Case, outcome: Outcome, seconds: float, limit: float) -> Verdict:
    """Return the verdict; ``limit`` is the deadline that applied, in seconds."""
    recordings = {
        f"rank{rank}": p.recording for rank, p in sorted(outcome.positions.items()) if p.recording
    }
    verdict = _judged(case, outcome, seconds, limit)
    return msgspec.structs.replace(
        verdict, recordings=recordings, tripped=tuple(sorted(outcome.tripped))
    )


def _judged(case: Case, outcome: Outcome, seconds: float, limit: float) -> Verdict:
    if trouble := machine_trouble(outcome):
        return Verdict(status=Status.INFRA, seconds=seconds, message=trouble)
    stacks = {f"rank {rank}": text for rank, text in sorted(outcome.stacks.items())}
    for rank, position in sorted(outcome.positions.items()):
        stacks[f"the collectives of rank {rank}"] = latest(position)
    if outcome.failures or outcome.dead:
        return _lost(outcome, stacks, seconds)
    if hung := outcome.waiting():
        where = describe_hang(case, outcome.positions)
        finding = Finding(
            oracle=losing("hung").name,
            engine=_engine(outcome, hung),
            observed=f"ranks {sorted(hung)} had not finished after {limit:.1f} s"
            + (where and f": {where}"),
            expected="every rank finishes",
            rank=min(hung),
        )
        return _accuse(Status.HANG, (finding,), stacks, seconds)
    active = {rank: r for rank, r in sorted(outcome.reports.items()) if not r.idle}
    findings = _agreeing([f for r in active.values() for f in r.findings])
    findings += _disagreements(case, active)
    findings.sort(key=_appearance)
    first = next(iter(active.values()))
    status, message = _status(
        findings, [f"{engine} {first.notes[engine]}" for engine in first.refused]
    )
    compared: dict[str, Compared] = {}
    for report in active.values():
        for engine, here in report.compared.items():
            compared[engine] = compared[engine].plus(here) if engine in compared else here
    return Verdict(
        status=status,
        findings=first_findings(findings, MOST_FINDINGS),
        notes=first.notes,
        comparison=first.comparison,
        compared=compared,
        seconds=seconds,
        message=message,
        ran=tuple(sorted({name for report in outcome.reports.values() for name in report.ran})),
    )


def _appearance(finding: Finding) -> tuple[int, int, str, int]:
    """By op, then the rule nearest to the cause first."""
    return finding.op, finding.rule.place, finding.name, finding.rank


def _agreeing(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, with all engines that agree on some rank: one rank may hold a shard
    that is right under one of them.
    """
    names: dict[tuple[str, int, str, str], set[str]] = {}
    for f in findings:
        names.setdefault((f.engine, f.op, f.oracle, f.name), set()).update(f.agrees_with)
    return [
        msgspec.structs.replace(
            f, agrees_with=tuple(sorted(names[f.engine, f.op, f.oracle, f.name]))
        )
        for f in findings
    ]


def _status(findings: list[Finding], refused: Sequence[str]) -> tuple[Status, str]:
    if findings:
        if findings[0].engine == REFERENCE.name:
            what = findings[0]
            return Status.INFRA, f"the reference: {what.observed}, expected {what.expected}"
        return Status.DIVERGENCE, ""
    return (Status.REJECTED, "; ".join(refused)) if refused else (Status.PASS, "")


def _accuse(
    status: Status, findings: tuple[Finding, ...], stacks: dict[str, str], seconds: float
) -> Verdict:
    """Return a verdict on lost ranks: the reference's loss is ours, not an engine's."""
    if findings[0].engine in ("", REFERENCE.name):
        message = f"lost in the harness: {findings[0].observed}"
        return Verdict(
            status=Status.INFRA, findings=(), stacks=stacks, seconds=seconds, message=message
        )
    return Verdict(status=status, findings=findings, stacks=stacks, seconds=seconds)


def machine_trouble(outcome: Outcome) -> str:
    """Return what is wrong with the machine, where that cost ranks: whatever else they say may
    follow from it.
    """
    for rank in sorted(outcome.stopped & outcome.waiting()):
        return f"rank {rank} is stopped by a signal: by a person, or by a debugger"
    for rank, node in sorted(outcome.lost_nodes.items()):
        return f"rank {rank} is lost with its node: nobody answers at {node}"
    for rank, failure in sorted(outcome.failures.items()):
        if failure.machine:
            return f"rank {rank} lacks what it needs of the machine: {failure.machine}"
    for rank in sorted(outcome.dead):
        printed, code = outcome.stacks.get(rank, ""), outcome.exits.get(rank, 0)
        if trouble := death_trouble(code, printed, outcome.out_of_memory):
            return f"rank {rank} {trouble}"
    return ""


def _lost(outcome: Outcome, stacks: dict[str, str], seconds: float) -> Verdict:
    """Some rank raised or died. What a rank raised by itself comes before what the loss of a peer
    caused.
    """
    if kernels := _kernel_errors(outcome):
        rank = min(kernels)
        return _died(outcome, rank, kernels[rank], stacks, seconds)
    own = {rank: f for rank, f in outcome.failures.items() if not f.desync}
    failures = own or outcome.failures
    if failures and (own or not outcome.dead):
        rank, failure = min(failures.items())
        if failure.phase != "engine":
            return Verdict(
                status=Status.INFRA,
                seconds=seconds,
                message=f"{failure.message}\n{failure.traceback}",
            )
        another = bool(failure.expected) and not failure.desync
        finding = Finding(
            oracle=losing("raised otherwise" if another else "raised").name,
            engine=failure.engine,
            observed=failure.message,
            expected=failure.expected if another else "no exception",
            op=failure.op,
            rank=rank,
            detail="desync" if failure.desync else failure.detail,
        )
        status = Status.DIVERGENCE if another else Status.CRASH
        # Whether a lost peer shows as an error or as a hang is chance, and a hung rank says
        # nothing.
        found = [] if failure.desync else sorted(failure.findings, key=_appearance)
        silent = [f for f in found if f.op < finding.op and f.rule.of_values]
        if (
            silent
        ):  # what goes wrong first is the finding: the crash may follow from it, and would hide it
            status = Status.DIVERGENCE
        found = [*silent, finding, *(f for f in found if f not in silent)]
        return _accuse(
            status, first_findings(found, MOST_FINDINGS), stacks | _tracebacks(outcome), seconds
        )
    return _died(outcome, min(outcome.dead), "", stacks, seconds)


def _died(
    outcome: Outcome, rank: int, kernel: str, stacks: dict[str, str], seconds: float
) -> Verdict:
    """Return a process is of no more use: it has ended, or what CUDA says of a ``kernel`` is all
    it will ever say.

    A kernel fails after the call that launched it has returned: whichever call comes next raises,
    in whatever phase, or NCCL's watchdog aborts the process. That is chance, so all of it is one
    finding.
    """
    code = outcome.exits.get(rank, 0)
    ending = signal_name(code) if code < 0 else f"exit code {code}"
    said = [f"died: {ending}"] if rank in outcome.dead else []
    said += [f"CUDA error: {kernel}"] if kernel else []
    finding = Finding(
        oracle=losing("died").name,
        engine=_engine(outcome, outcome.dead | {rank}),
        observed=f"rank {rank} {', '.join(said)}",
        expected="no rank dies",
        rank=rank,
        detail=kernel or ending,
    )
    return _accuse(Status.CRASH, (finding,), stacks | _tracebacks(outcome), seconds)


def _kernel_errors(outcome: Outcome) -> dict[int, str]:
    """Return what CUDA says of kernels that failed, by rank: a call raised it, or the dying
    process printed it.
    """
    raised = {rank: failure.kernel for rank, failure in outcome.failures.items()}
    printed = {rank: device_error(outcome.stacks.get(rank, "")) for rank in outcome.dead}
    return {rank: text for rank, text in (raised | printed).items() if text}


def _tracebacks(outcome: Outcome) -> dict[str, str]:
    return {
        f"rank {rank}": failure.traceback for rank, failure in sorted(outcome.failures.items())
    }


def _engine(outcome: Outcome, ranks: set[int]) -> str:
    """Return the engine that the given ranks were last heard in, by majority."""
    heard = Counter(outcome.engines[r] for r in ranks if r in outcome.engines)
    return heard.most_common(1)[0][0] if heard else ""


def _disagreements(case: Case, active: dict[int, RankReport]) -> list[Finding]:
    """Rules that no rank can check alone: one sequence of collectives, equal replicas."""
    found = []
    last = len(case.schedule) - 1
    for oracle in (oracle for oracle in ORACLES if oracle.across_ranks):
        for engine in next(iter(active.values())).replicas:
            seen: dict[str, tuple[int, str]] = {}
            for rank, report in active.items():
                pieces, value = oracle.observed(case, rank, report, engine)
                first, other = seen.setdefault(pieces, (rank, value))
                if other != value:
                    found.append(
                        Finding(
                            oracle=oracle.name,
                            engine=engine,
                            observed=f"{value or 'none'} on rank {rank}",
                            expected=f"{oracle.across_ranks}: {other or 'none'} on rank {first}",
                            op=last,
                            rank=rank,
                        )
                    )
    return found
