"""Ranks that the checks of many tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
            **options: Any,
        ) -> Report:
            checker.subject = subject
            usual = {"steps": 2, "microbatches": 1, "seed": 0}
            runs = trainings(subject, [MeshShape.parse(mesh)], engines, **usual | options)
            return Report(trainings=tuple(map(checker.run, runs)))

        yield check
