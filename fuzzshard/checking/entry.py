"""A saved finding around a model of the user's own: a folder with ``subject.json``.

It names functions of the user's. ``fuzzshard check --again`` imports and runs them, and so do
``fuzzshard replay --allow-user-code`` and pytest with ``--fuzzshard-allow-user-code``; whatever
else reads a corpus leaves such a file alone.
"""

from __future__ import annotations

import dataclasses
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fuzzshard.checking.check import Checker, import_from_here
from fuzzshard.corpus.files import read_regular, write_atomic
from fuzzshard.corpus.outcome import Outcome
from fuzzshard.corpus.replay import ReplayResult
from fuzzshard.corpus.store import SCRIPT_FILE, SUBJECT_FILE
from fuzzshard.errors import InfraError, InvalidEntry, UsageError
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import Subject
from fuzzshard.world import WorldConfig
from fuzzshard.world.world import SUBJECT_SECONDS

FORMAT = 1


class SubjectEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is saved; ``shrunk`` says that the training is as small as it became."""

    format: int = FORMAT
    subject: Subject
    report: TrainingReport
    preload: tuple[str, ...] = ()
    torch: str = ""
    shrunk: bool = True


def save(corpus: Path, entry: SubjectEntry, script: str = "") -> Path:
    """Write an entry into a folder of its own below ``corpus``, and return the folder.

    A ``script`` that shows the finding lies beside it. Raises :class:`InfraError` where nothing
    can be written.
    """
    signature = entry.report.signature
    name = re.sub(r"[^a-z0-9]+", "-", signature.lower()).strip("-")[:60]
    key = zlib.crc32(f"{entry.subject.build} {signature}".encode())
    folder = corpus / "own" / f"{name}-{key:08x}"
    if script:
        write_atomic(folder / SCRIPT_FILE, script.encode())
    text = msgspec.json.format(msgspec.json.encode(entry), indent=2) + b"\n"
    write_atomic(folder / SUBJECT_FILE, text)
    return folder


def load(path: Path) -> SubjectEntry:
    """Read an entry, from its folder or its file; raises :class:`InvalidEntry`."""
    file = path / SUBJECT_FILE if path.is_dir() else path
    try:
        entry = msgspec.json.decode(read_regular(file), type=SubjectEntry)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidEntry(
            f"{file} is no saved finding of fuzzshard check: {reason}", "check the path"
        ) from error
    if entry.format > FORMAT:
        raise InvalidEntry(f"{file} has format {entry.format}", "use a newer fuzzshard")
    return entry


def replay_subjects(
    files: Sequence[Path], config: WorldConfig, num_ranks: int, deadline: float | None = None
) -> Iterator[ReplayResult]:
    """Yield one result for each file; a bad entry does not stop the others.

    ``config`` is that of the worlds, each of the size of its mesh, at most ``num_ranks``.
    """
    import_from_here()
    for file in files:
        yield replay_subject(file, config, num_ranks, deadline)


def replay_subject(
    file: Path, config: WorldConfig, num_ranks: int, deadline: float | None = None
) -> ReplayResult:
    """Train as the entry in ``file`` says, and say whether its finding is still there."""
    path, began, torch = file.parent, time.monotonic(), ""
    try:
        entry = load(file)
        training = entry.report.training
        if (needed := training.size) > num_ranks:
            message = f"the mesh ({training.mesh}) needs {needed} ranks, not {num_ranks}"
            return ReplayResult(path, Outcome.SKIPPED, message=message)
        config = dataclasses.replace(config, preload=(*entry.preload, *config.preload))
        with Checker(entry.subject, config, deadline or SUBJECT_SECONDS) as checker:
            outcome, message = _outcome(entry, checker.run(training))
            torch = checker.torch
    except (InvalidEntry, UsageError) as error:
        outcome, message = Outcome.INVALID, str(error)
    except InfraError as error:
        outcome, message = Outcome.INFRA, str(error)
    return ReplayResult(path, outcome, time.monotonic() - began, message, torch)


def _outcome(entry: SubjectEntry, report: TrainingReport) -> tuple[Outcome, str]:
    recorded = entry.report.signature
    if report.outcome == "not judged":
        return Outcome.INCONCLUSIVE, report.message
    if not report.is_finding:
        return Outcome.FIXED, f"{recorded} is gone"
    if report.signature == recorded:
        return Outcome.SAME, recorded
    return Outcome.CHANGED, f"{report.signature}, recorded was {recorded}"
