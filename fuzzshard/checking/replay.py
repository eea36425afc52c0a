"""Replaying saved findings around models of the user's own, which runs the user's code."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzzshard.checking.check import Checker, import_from_here
from fuzzshard.checking.entry import SubjectEntry, load
from fuzzshard.checking.report import TrainingReport
from fuzzshard.corpus.outcome import Outcome
from fuzzshard.corpus.replay import ReplayResult
from fuzzshard.errors import InfraError, InvalidEntry, UsageError
from fuzzshard.world import WorldConfig
from fuzzshard.world.world import SUBJECT_SECONDS


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
    path, began = file.parent, time.monotonic()
    try:
        entry = load(file)
    except InvalidEntry as error:
        return ReplayResult(path, Outcome.INVALID, message=str(error))
    training = entry.report.training
    if training.mesh.size > num_ranks:
        message = f"the mesh ({training.mesh}) needs {training.mesh.size} ranks, not {num_ranks}"
        return ReplayResult(path, Outcome.SKIPPED, message=message)
    preload = (*entry.preload, *config.preload)
    config = dataclasses.replace(config, preload=preload)
    torch = ""
    try:
        with Checker(entry.subject, config, deadline or SUBJECT_SECONDS) as checker:
            report = checker.run(training)
            torch = checker.torch
        outcome, message = _outcome(entry, report)
    except UsageError as error:
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
