"""What is run for a draft: the script, changes of the case, and what else can say which side is
wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace
from packaging.version import Version

from fuzzshard.analysis.dtypes import is_low_precision, uniform
from fuzzshard.case.case import ALL_ENGINES, ENGINES, Case
from fuzzshard.contracts import installed_torch
from fuzzshard.corpus.entry import CorpusEntry, Culprit
from fuzzshard.corpus.expectation import is_there
from fuzzshard.corpus.lifecycle import in_order, release
from fuzzshard.corpus.scripts import shown_by
from fuzzshard.errors import FuzzshardError
from fuzzshard.mending.mend import Mend, own_mends
from fuzzshard.reproducer import body, script_like
from fuzzshard.reproducer.check import check, ranks_needed
from fuzzshard.reproducer.shown import Shown
from fuzzshard.runner import Runner
from fuzzshard.shrink.culprits import changes, culprits, subject
from fuzzshard.temporary import TemporaryFolder
from fuzzshard.verdict import Finding, Status, Verdict

ENVIRONMENT_SECONDS = 120.0

_RAISED_ON = re.compile(r"\[rank(\d+)\]: Traceback")
_ACCOUNT = "ChildFailedError:"
"""How the error ends with which torchrun tells of ranks that failed."""
_OF_TORCHRUN = re.compile(
    r"[EWI]\d{4} [\d:.]+ \d+ .*torch/distributed/|\[rank\d+\]: ?\[[WI]\d{4} "
)
"""How lines of logs begin: torchrun's when a rank fails, and warnings of torch's C++ code."""

_CPU = re.compile(r"^CPU:\n.*?\n\n", re.MULTILINE | re.DOTALL)
"""What collect_env says of the processor: 50 lines that no bug here depends on."""
_NOTHING = re.compile(
    r"^(Collecting environment information|.*(: (N/A|False)|Could not collect)$"
    r"|\[\w+\] (?!torch|triton|numpy|nvidia-nccl)).*\n?",
    re.MULTILINE,
)
"""Lines of collect_env that say what is not there, or name packages that no bug here depends
on.
"""

_PASSED_THROUGH = re.compile(
    r'File ".*/(torch/nn/modules/module|torch/_dynamo/eval_frame|torch/utils/_contextlib'
    r'|torch/_ops|fsdp/_fully_shard/_fsdp_common)\.py"'
)
"""Frames of tracebacks that every call of a module or a decorated function has."""

MOST_CHANGES = 3
"""Changes of the script that a draft tells."""


@dataclasses.dataclass(frozen=True)
class ScriptRuns:
    """How often the script showed the finding, and what the first run that did so printed."""

    runs: int = 0
    shown: int = 0
    output: str = ""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Everything that was run. ``repeats``: whether the case still shows the finding, None if
    nobody ran it.

    ``example`` is that of the mend which the entry names. ``shows`` is the signature or status
    that the case came to. ``changes`` are diffs of the script after which it is right. ``peer`` is
    an engine that agrees with the reference on the same case, ``exactly`` the finding of the case
    in higher precision. ``cured``: the case passes with the mend that the entry names.
    """

    script: ScriptRuns = ScriptRuns()
    example: ScriptRuns = ScriptRuns()
    repeats: bool | None = None
    shows: str = ""
    changes: tuple[str, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    peer: str = ""
    exactly: Finding | None = None
    cured: bool = False
    environment: str = ""

    @property
    def has_example(self) -> bool:
        """Whether nothing speaks against the example of the mend: it has failed, or nobody ran
        it.
        """
        return self.example.shown == self.example.runs


def run_script(
    text: str, entry: CorpusEntry, runs: int, *, preload: tuple[Path, ...] = ()
) -> ScriptRuns:
    """Runs the script on fresh ranks, as its reader will."""
    outputs = []
    with TemporaryFolder() as folder:
        script = folder / "repro.py"
        script.write_text(text)
        for _ in range(runs):
            result = check(script, ranks_needed(text), preload=preload)
            if shown_by(result, entry) is Shown.YES:
                outputs.append(readable(result.output, str(folder)))
    return ScriptRuns(runs, len(outputs), next(iter(outputs), ""))


def run_example(mend: Mend, *, preload: tuple[Path, ...] = ()) -> ScriptRuns:
    """Runs the example of ``mend`` once, if it has one: it fails while the bug is there."""
    if not mend.example:
        return ScriptRuns()
    with TemporaryFolder() as folder:
        script = folder / "example.py"
        script.write_text(mend.example)
        result = check(script, mend.example_ranks, preload=preload)
    return ScriptRuns(1, int(result.fails), readable(result.output, str(folder)))


def readable(output: str, folder: str) -> str:
    """Return what the first rank that fails printed, without torchrun's own account and paths of
    this machine.

    Of a rank that a signal killed only torchrun's account says so; it stays then, but for the
    host's name. A single rank has no mark before its lines.
    """
    text = (
        output.replace(f"{folder}/", "").replace(sys.prefix, "...").replace(str(Path.home()), "~")
    )
    lines = [line.rstrip() for line in text.splitlines() if not _OF_TORCHRUN.match(line)]
    ranks = sorted({int(found[1]) for line in lines if (found := _RAISED_ON.match(line))})
    account = next((i for i, line in enumerate(lines) if _ACCOUNT in line), len(lines))
    own = [
        i for i, line in enumerate(lines[:account]) if line == "Traceback (most recent call last):"
    ]
    printed = lines[: own[-1] if own else account]
    if not ranks and len(own) > 1:
        return "\n".join(_without_passing_frames(printed)).strip()
    if not ranks:
        killed = [
            line for line in lines[account:] if not line.lstrip().startswith(("host", "time"))
        ]
        return "\n".join([*dict.fromkeys(printed), *killed]).strip()
    first = f"[rank{ranks[0]}]:"
    warned = dict.fromkeys(line for line in printed if not line.startswith("[rank"))
    raised = [line for line in printed if line.startswith(first)]
    others = f"\n(rank {', '.join(map(str, ranks[1:]))} likewise)" if ranks[1:] else ""
    told = _without_passing_frames(raised)
    return "\n".join([*filter(None, warned), *told]).strip() + others


def _without_passing_frames(lines: list[str]) -> list[str]:
    """A traceback without frames that only pass a call on, and without the marks below lines."""
    kept: list[str] = []
    passes = False
    for line in lines:
        text = re.sub(r"^\[rank\d+\]: ", "", line)
        if text.startswith("  File "):
            passes = _PASSED_THROUGH.search(text) is not None
        elif not text.startswith("    "):
            passes = False
        if not passes and not re.fullmatch(r"\s*[\^~]+\s*", text):
            kept.append(line)
    return kept


def collect_env() -> str:
    """Return ``torch.utils.collect_env`` of this Python, which runs the scripts."""
    try:
        result = subprocess.run(
            [sys.executable, "-m", "torch.utils.collect_env"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ENVIRONMENT_SECONDS,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        return f"torch.utils.collect_env did not end well: {type(error).__name__}"
    text = _CPU.sub("", result.stdout.replace(str(Path.home()), "~"))
    return _NOTHING.sub("", text).strip()


def right_changes(
    entry: CorpusEntry, script: str, *, preload: tuple[Path, ...] = ()
) -> tuple[str, ...]:
    """Return diffs of ``script`` after which it is right, as a run of it says."""
    right: list[str] = []
    with TemporaryFolder() as folder:
        target = folder / "repro.py"
        for change in as_code(entry, script):
            target.write_text(change.script)
            if not check(target, ranks_needed(change.script), preload=preload).fails:
                right.append(change.diff)
            if len(right) == MOST_CHANGES:
                break
    return tuple(right)


def judged(
    world: Runner, num_ranks: int, entry: CorpusEntry, now: Callable[[str], None] = lambda _: None
) -> Evidence:
    """Runs the case and its neighbours; what the entry knows is not run again.

    ``now`` is told what is run: cases that hang take minutes.
    """
    engine = entry.findings[0].engine if entry.findings else ""
    runs = itertools.count(1)

    def status(case: Case) -> Status:
        now(f"running changes of the case that may make it pass: change {next(runs)}")
        verdict = _run(world, case)
        return Status.REJECTED if verdict is None or engine in verdict.notes else verdict.status

    now("running the case")
    again = _run(world, entry.case)
    shows = "" if again is None else again.signature or again.status
    if again is None or not is_there(entry, again, installed_torch()):
        return Evidence(repeats=False, shows=shows, culprits=entry.culprits)
    helpful = changes_that_help(entry, status, num_ranks)
    now("running the case under another engine, in float64 and without its cause")
    return Evidence(
        repeats=True,
        shows=shows,
        culprits=helpful,
        peer=_agreeing_peer(world, entry, engine),
        exactly=_in_higher_precision(world, entry),
        cured=entry.cause in own_mends()
        and world.run(entry.case, mends=(entry.cause,)).status is Status.PASS,
    )


def _agreeing_peer(world: Runner, entry: CorpusEntry, engine: str) -> str:
    """Return another engine that agrees with the reference, of those that every case has."""
    peer = next(other for other in ENGINES if other != engine)
    if engine not in ALL_ENGINES or entry.case.tensor_parallel:
        return ""
    verdict = _run(world, replace(entry.case, engines=(peer,), expect=()))
    agrees = verdict is not None and verdict.status is Status.PASS and peer not in verdict.notes
    return peer if agrees else ""


def _in_higher_precision(world: Runner, entry: CorpusEntry) -> Finding | None:
    """The same finding in float64, where rounding is smaller by nine orders of magnitude."""
    first = entry.findings[0]
    if entry.case.dtype == "float64" or is_low_precision(entry.case) or first.error is None:
        return None
    verdict = _run(world, uniform(entry.case, "float64"))
    same = verdict is not None and verdict.signature == entry.signature
    return verdict.findings[0] if verdict is not None and same else None


def _run(world: Runner, case: Case) -> Verdict | None:
    """None where this machine cannot run the case."""
    with contextlib.suppress(FuzzshardError):
        return world.run(case)
    return None


def versions_known(entry: CorpusEntry, evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield versions of torch, the newest first, and whether the finding is there."""
    known = dict.fromkeys(entry.good_on, "does not show it")
    known |= dict.fromkeys((*entry.bad_on, *filter(None, [entry.torch])), "shows it")
    known = {release(version): said for version, said in known.items()}
    if evidence.script.shown:
        here = release(installed_torch())
        known[here] = "shows it; run for this draft"
    if not any(Version(version).is_devrelease for version in known):
        yield "nightly", "not tried"
    yield from ((version, known[version]) for version in reversed(in_order(set(known))))


ENOUGH = 4
"""Changes after which a case passes that are looked for: the first ones say the most."""

MOST_LINES = 6
"""Lines that a change of a script may take out or put in, all in all: more says nothing."""


def changes_that_help(
    entry: CorpusEntry,
    status: Callable[[Case], Status],
    num_ranks: int,
    *,
    max_runs: int = 150,
    max_seconds: float = 120.0,
) -> tuple[Culprit, ...]:
    """Changes after which the case passes, one for each thing that they change, and then the
    others known.

    ``status`` runs a case on at most ``num_ranks``. Shrinking knows of simplifications only; of an
    option, another value may say more.
    """
    known = {culprit.change: culprit.outcome for culprit in entry.culprits}
    until, runs, subjects = time.monotonic() + max_seconds, 0, set[str]()

    def outcome_of(phrase: str, candidate: Case) -> str | None:
        nonlocal runs
        if subject(phrase) in subjects or candidate.mesh.size > num_ranks:
            return None
        if phrase not in known:
            if runs >= max_runs or time.monotonic() >= until:
                return None
            runs += 1
            known[phrase] = status(candidate)
        if known[phrase] != Status.PASS:
            return None
        subjects.add(subject(phrase))
        return Status.PASS

    found = tuple(itertools.islice(culprits(entry.case, outcome_of), ENOUGH))
    return (*found, *(culprit for culprit in entry.culprits if culprit not in found))


@dataclasses.dataclass(frozen=True)
class CodeChange:
    """A change of a script: its lines as a diff, and the whole script after it."""

    diff: str
    script: str


def as_code(entry: CorpusEntry, script: str) -> Iterator[CodeChange]:
    """Changes of ``script`` that stand for those after which the case of ``entry`` passes.

    A change that takes away the very op that goes wrong, or a step of the optimizer, tells
    nothing, and one of the number of ranks little.
    """
    helpful = {culprit.change for culprit in entry.culprits if culprit.outcome == Status.PASS}
    seen = set()
    for phrase, changed in changes(entry.case):
        if phrase not in helpful or changed.mesh.size != entry.case.mesh.size:
            continue
        moved = _moved(entry, changed)
        if moved is None:
            continue
        text = script_like(
            script,
            entry.case,
            changed,
            signature=entry.signature,
            findings=entry.findings,
            moved=moved,
        )
        lines = _changed_lines(script, text) if text else []
        if text and 0 < len(lines) <= MOST_LINES and tuple(lines) not in seen:
            seen.add(tuple(lines))
            yield CodeChange("\n".join(lines), text)


def _moved(entry: CorpusEntry, changed: Case) -> int | None:
    """By how many places the op at which ``entry`` goes wrong stands elsewhere in ``changed``.

    None where it is not there, other ops than those before it have changed, or nothing is trained
    any more.
    """
    index = entry.findings[0].op
    if sum(op.updates for op in changed.schedule) < sum(op.updates for op in entry.case.schedule):
        return None
    if index < 0:
        return 0
    moved = len(changed.schedule) - len(entry.case.schedule)
    same = changed.schedule[max(index + moved, 0) :] == entry.case.schedule[index:]
    return moved if same and index + moved >= 0 else None


def _changed_lines(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(body(before), body(after), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]
