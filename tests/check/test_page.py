"""``check --html``: both runs side by side, opened where they part."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from command_line import fuzzshard
from user_models import functions_of, words_of

from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING
from fuzzshard.report.html.checks import checks_page, tree
from fuzzshard.subject.report import Difference, FirstOperator, TrainingReport
from fuzzshard.subject.subject import MeshShape, Subject, Training

HERE = Path(__file__).parent


def page_of(tmp_path: Path, file: str, code: int, parallelize: str = "") -> str:
    named = functions_of(HERE / file)
    subject = Subject(
        build=named["build"], inputs=named["batch"], parallelize=named.get(parallelize, "")
    )
    page = tmp_path / "page.html"
    words = [*words_of(subject), "--steps", "1", "--html", str(page)]
    assert fuzzshard("check", *words) == code
    return page.read_text()


def test_the_tree_opens_where_the_runs_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_of(tmp_path, "planted/backward_of_shards.py", EXIT_FINDING, "parallelize")
    opened = re.findall(r"<details open>\s*<summary><code>(.*?)</code>", page)
    assert opened == ["the model", "1"]
    assert page.count("<details") == page.count("</details>") == 6
    first = page[: page.index("the first</span>")].rpartition("<tr>")[2]
    assert "backward <code>aten.tanh_backward.default</code>" in first
    printed = capsys.readouterr().out
    assert "\n".join(printed.splitlines()[1:]) in unescape(page)  # the report as it was printed
    assert "side_by_side" not in printed


def test_a_training_that_is_equal_has_no_tree(tmp_path: Path) -> None:
    page = page_of(tmp_path, "small.py", EXIT_CLEAN)
    assert "0 of 2 trainings with a finding" in page
    assert "<details" not in page


def test_modules_hold_their_operators_and_names_are_no_markup() -> None:
    first = FirstOperator(how="outputs", name="aten.<b>", module="blocks.0", position=1)
    report = TrainingReport(
        training=Training(mesh=MeshShape({"dp_shard": 2})),
        outcome="different",
        difference=Difference(kind="outputs", name="0", step=0, observed="1", expected="2"),
        operator=first,
        side_by_side=(FirstOperator(name="aten.mm", module="head"), first),
    )
    root = tree(report)
    assert root is not None
    assert (root.num_differing, [*root.children]) == (1, ["head", "blocks"])
    assert not root.children["head"].opens
    assert root.children["blocks"].children["0"].operators == [first]
    assert "aten.&lt;b&gt;" in checks_page([report])
