"""Replaying a set of entries."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Literal

from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import is_there, known_versions, with_finding, with_observation
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.outcome import Outcome, Replayed, obstacle, replay_entry
from fuzzshard.corpus.scripts import ScriptRender, script_of
from fuzzshard.corpus.side_by_side import in_worlds, nothing_is_halted
from fuzzshard.corpus.store import CASE_FILE, save_shrunk
from fuzzshard.errors import InvalidEntry, check_infra_in_a_row
from fuzzshard.runner import Runner, StartWorlds
from fuzzshard.verdict import Verdict

Explain = Callable[[Runner, Case, Verdict], Sequence[str]]
"""The known bugs of torch that cause a finding, by the names of their mends; none where it is not
known.
"""


@dataclasses.dataclass(frozen=True)
class ReplayResult:
    """One replayed entry: the folder or file it is in, the outcome, a line of what was seen, and
    which torch.

    ``torch`` is empty where nothing ran, and ``verdict`` None.
    """

    path: Path
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""
    torch: str = ""
    verdict: Verdict | None = None


def replay(
    files: Sequence[Path],
    start_worlds: StartWorlds,
    *,
    device: Literal["cpu", "cuda"],
    num_ranks: int,
    deadline: float | None = None,
    explain: Explain = lambda *_: (),
    one_size: bool = False,
    halt: Callable[[str], None] = nothing_is_halted,
) -> Generator[ReplayResult, None, None]:
    """Yields one result for each of ``files``; a bad entry does not stop the others.

    What cannot run comes first, then the rest as :func:`in_worlds` runs it. ``deadline`` is that
    of :func:`replay_entry`. What ``explain`` knows is ``KNOWN`` where nothing is expected. Raises
    :class:`fuzzshard.errors.InfraError` when a world can judge no entry several times in a row.
    """
    runnable: dict[Path, CorpusEntry] = {}
    for file in files:
        entry = _load(file)
        if isinstance(entry, InvalidEntry) or obstacle(entry, device, num_ranks):
            yield _without_world(file, entry, device, num_ranks)
        else:
            runnable[file] = entry

    infra_in_a_row: dict[Runner, tuple[int, str]] = {}

    def run(world: Runner, file: Path, entry: CorpusEntry) -> ReplayResult:
        count, why = infra_in_a_row.get(world, (0, ""))
        check_infra_in_a_row(count, why)
        start = time.monotonic()
        replayed = unless_known(
            world, replay_entry(world, entry, device, deadline), entry, explain
        )
        is_infra = replayed.outcome is Outcome.INFRA
        infra_in_a_row[world] = (count + 1, replayed.message) if is_infra else (0, "")
        return ReplayResult(
            shown_path(file),
            replayed.outcome,
            time.monotonic() - start,
            replayed.message,
            replayed.torch,
            replayed.verdict,
        )

    yield from in_worlds(
        runnable.items(),
        start_worlds,
        run,
        device=device,
        num_ranks=num_ranks,
        one_size=one_size,
        halt=halt,
    )


def unless_known(
    world: Runner, replayed: Replayed, entry: CorpusEntry, explain: Explain
) -> Replayed:
    """Return ``KNOWN`` where nothing is expected and ``explain`` names what causes the finding.

    An entry that records a finding of its own, or had one, is about that one alone.
    """
    if replayed.outcome is not Outcome.CHANGED or entry.signature or replayed.verdict is None:
        return replayed
    causes = explain(world, entry.case, replayed.verdict)
    if not causes:
        return replayed
    said = f"{replayed.verdict.signature}, caused by {', '.join(causes)}"
    return dataclasses.replace(replayed, outcome=Outcome.KNOWN, message=said)


def _load(file: Path) -> CorpusEntry | InvalidEntry:
    try:
        return read_entry(file)
    except InvalidEntry as error:
        return error


def _without_world(
    file: Path, entry: CorpusEntry | InvalidEntry, device: Literal["cpu", "cuda"], num_ranks: int
) -> ReplayResult:
    if isinstance(entry, InvalidEntry):
        return ReplayResult(shown_path(file), Outcome.INVALID, message=without_path(file, entry))
    return ReplayResult(
        shown_path(file), Outcome.SKIPPED, message=obstacle(entry, device, num_ranks)
    )


def without_path(file: Path, error: InvalidEntry) -> str:
    """Return what is wrong with ``file``, for a line that begins with its path."""
    return str(error).removeprefix(f"{file}: ")


def shown_path(file: Path) -> Path:
    """Return the folder of an entry, or the file of a bare case, for ``fuzzshard show``."""
    return file.parent if file.name == CASE_FILE else file


def update(result: ReplayResult, device: str, render: ScriptRender) -> str:
    """Writes what ``result`` has seen into its entry; a few words of what became of it, empty for
    no change.

    A bare case, and an entry without a recorded finding, are expected to pass and stay so. Files
    are replaced whole. Raises :class:`fuzzshard.errors.InfraError` for a disk that is full or
    read-only.
    """
    if result.verdict is None or not result.path.is_dir():
        return ""
    file = result.path / CASE_FILE
    entry = read_entry(file)
    if not entry.signature or entry.device not in ("", device):
        return ""
    after = _after(entry, result, device)
    if after == entry:
        return ""
    if after.signature != entry.signature:
        save_shrunk(result.path, after, script_of(after, render))
        return f"now {after.signature}"
    write_atomic(file, encode_entry(after))
    return f"{after.lifecycle}, {known_versions(after)}"


def _after(entry: CorpusEntry, result: ReplayResult, device: str) -> CorpusEntry:
    verdict = result.verdict
    assert verdict is not None
    match result.outcome:
        case Outcome.CHANGED if not is_there(entry, verdict, result.torch):
            return with_finding(entry, verdict, result.torch, device)
        case Outcome.SAME | Outcome.WONTFIX | Outcome.CHANGED:
            return with_observation(entry, result.torch, present=True)
        case Outcome.FIXED | Outcome.PASS:
            return with_observation(entry, result.torch, present=False)
    return entry
