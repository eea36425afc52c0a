"""Ranks that the checks of many tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from user_models import Checked

from fuzzshard.checking.check import DEFAULT_MESHES, Checker, trainings
from fuzzshard.subject.report import Report
from fuzzshard.subject.subject import MeshShape, Subject
from fuzzshard.world import WorldConfig


@pytest.fixture(scope="session")
def checked() -> Iterator[Checked]:
    """The report of ``checked(subject, mesh="dp_shard=2", engines=(), ...)``."""
    nothing = Subject(build="", inputs="")
    with Checker(nothing, WorldConfig(size=2), patience=60.0) as checker:

        def check(
            subject: Subject,
            mesh: str = str(DEFAULT_MESHES[0]),
            *,
            engines: tuple[str, ...] = (),
            steps: int = 2,
            microbatches: int = 1,
            resume: int = 0,
            global_batch: bool = False,
            races: bool = False,
        ) -> Report:
            checker.subject = subject
            runs = trainings(
                subject,
                [MeshShape.parse(mesh)],
                engines,
                steps=steps,
                microbatches=microbatches,
                seed=0,
                resume=resume,
                global_batch=global_batch,
                races=races,
            )
            return Report(trainings=tuple(map(checker.run, runs)))

        yield check
