"""Several meshes and settings in one command: a line each, JUnit, the exit code of the worst."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import fuzzshard
from user_models import functions_of, mistake, words_of

from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_USAGE
from fuzzshard.report.junit import checks_xml
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import MeshShape, Subject, Training

SMALL = functions_of(Path(__file__).parent / "small.py")


def table_of(printed: str) -> dict[str, str]:
    """What came of each training, by its label."""
    lines = printed.partition("\n\n")[2].splitlines()
    rows = (line.rpartition("  (")[0] for line in lines if line.startswith("dp_"))
    return {label: result.strip() for label, _, result in (row.partition("  ") for row in rows)}


def test_meshes_and_settings_have_a_line_each(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    subject = Subject(build=SMALL["build_two_blocks"], inputs=SMALL["batch"], loss=SMALL["loss"])
    meshes = ("--mesh", "dp_shard=2", "--mesh", "dp_replicate=2")
    more = ("--engine", "fully_shard", "--steps", "2", "--vary", "all")
    junit = tmp_path / "check.xml"
    words = [*words_of(subject), *meshes, *more, "--junit", str(junit)]
    assert fuzzshard("check", *words) == EXIT_CLEAN
    settings = ("", ", precision", ", compile", ", checkpointing")
    due = [
        f"{mesh}, fully_shard{s}" for mesh in ("dp_shard=2", "dp_replicate=2") for s in settings
    ]
    table = table_of(capsys.readouterr().out)
    assert [*table] == due
    assert table["dp_shard=2, fully_shard"] == "equal"
    assert all(result.startswith("equal") for result in table.values())
    (suite,) = ElementTree.parse(junit).getroot()
    assert [case.get("name") for case in suite.iter("testcase")] == due
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "0")


def test_the_worst_of_several_decides(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    junit = tmp_path / "check.xml"
    words = [
        *words_of(mistake("root_not_wrapped")),
        "--mesh",
        "dp_shard=1",
        "--mesh",
        "dp_shard=2",
    ]
    words += ["--vary", "precision", "--junit", str(junit)]
    assert fuzzshard("check", *words) == EXIT_FINDING
    printed = capsys.readouterr().out
    first, second = table_of(printed).values()
    assert first == "equal"
    assert second.startswith(
        "different, gradients embedding.weight, step 0, rank 0: equal to this"
    )
    assert (
        "not varied: dp_shard=2, parallelize, precision (parallelize wraps the model)" in printed
    )
    failures = list(ElementTree.parse(junit).getroot().iter("failure"))
    assert len(failures) == 1
    assert "first difference: gradients embedding.weight" in str(failures[0].text)


def test_what_a_setting_alone_shows_is_seen_in_its_line(capsys: pytest.CaptureFixture[str]):
    named = functions_of(Path(__file__).parent / "planted" / "settings.py")
    subject = Subject(build=named["build"], inputs=named["batch"])
    words = [*words_of(subject), "--engine", "fully_shard", "--vary", "compile,checkpointing"]
    assert fuzzshard("check", *words) == EXIT_FINDING
    base, compiled, checkpointed = table_of(capsys.readouterr().out).values()
    assert base == "equal"
    assert compiled.startswith("different, outputs 0, step 0")
    assert checkpointed.startswith("different, gradients 0.linear.weight, step 0")


def test_a_setting_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]):
    subject = Subject(build=SMALL["build"], inputs=SMALL["batch"])
    assert fuzzshard("check", *words_of(subject), "--vary", "precison") == EXIT_USAGE
    assert "use all, or precision, compile, checkpointing" in capsys.readouterr().err


def test_junit_holds_no_character_that_xml_cannot():
    report = TrainingReport(
        training=Training(mesh=MeshShape({"dp_shard": 2})),
        outcome="error",
        message="\x00\x1b[31m<&>: lost",
    )
    (failure,) = ElementTree.fromstring(checks_xml([report])).iter("failure")
    assert failure.get("type") == "error/��[#m<&>"
