"""Programs as users have them: right ones raise no alarm, and mistakes are named.

``pytest -m slow tests/check/test_own_programs.py`` runs all of them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from own_programs import MISTAKES, RIGHT, Mistake, Program
from user_models import Checked

from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import Subject

QUICK_RIGHT = (
    "meta device, a tie",
    "Megatron's f and g",
    "a closure, cosine schedule",
    "experts on their ranks",
    "adapters of a half",
)
QUICK = {
    "a tie is lost by to_empty": "",
    "Megatron's f is forgotten": "right",
    "dropout is drawn again when recomputed": "right",
    "a schedule goes on with each microbatch": "",
    "gradients of experts add up": "right",
    "weights are of the experts of this rank": "right",
    "experts are balanced by a rank's own tokens": "",
    "experts without state are saved by DCP": "",
}


def report_of(checked: Checked, program: Program, subject: Subject) -> TrainingReport:
    (report,) = checked(subject, program.mesh, **{"microbatches": 2} | program.options).trainings
    return report


def _right(name: str, checked: Checked) -> None:
    report = report_of(checked, RIGHT[name], RIGHT[name].subject())
    assert report.outcome == "equal", "\n".join(report.lines())


@pytest.mark.parametrize("name", QUICK_RIGHT)
def test_a_right_program_is_equal(name: str, checked: Checked) -> None:
    _right(name, checked)


@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_is_named_with_its_operator(name: str, checked: Checked, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    report = report_of(checked, mistake.program, mistake.subject(tmp_path))
    assert mistake.judge(report) == ("named", QUICK[name]), "\n".join(report.lines())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RIGHT if name not in QUICK_RIGHT])
def test_every_right_program_is_equal(name: str, checked: Checked) -> None:
    _right(name, checked)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MISTAKES if name not in QUICK])
def test_every_mistake_is_seen_as_it_is_today(name: str, checked: Checked, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    report = report_of(checked, mistake.program, mistake.subject(tmp_path))
    assert mistake.judge(report)[0] == mistake.seen, "\n".join(report.lines())


ANNOTATED = Program(
    "annotated",
    {
        "build": "build",
        "inputs": "batch",
        "parallelize": "parallelize",
        "train_step": "train_step",
    },
    "dp_shard=1,tp=2",
)
FORGOTTEN = Mistake(
    ANNOTATED,
    "        y = y if self.tp is None else spmd.all_reduce(y, self.tp, src=spmd.P, dst=spmd.I)\n",
    "",
    "SpmdTypeError",
)


@pytest.mark.parametrize("train_step", ["train_step", ""])
def test_annotations_of_spmd_types_are_checked_by_themselves_and_by_numbers(
    train_step: str, checked: Checked, tmp_path: Path
) -> None:
    pytest.importorskip("spmd_types")
    program = ANNOTATED.but(train_step=train_step)
    report = report_of(checked, program, program.subject())
    assert report.outcome == "equal", "\n".join(report.lines())
    mistake = dataclasses.replace(FORGOTTEN, program=program)
    report = report_of(checked, program, mistake.subject(tmp_path))
    said = "\n".join(report.lines())
    assert mistake.judge(report)[0] == ("named" if train_step else "found"), said
    assert report.outcome == ("error" if train_step else "different")
