"""What the documentation shows works as it stands."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import shutil
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from cases import make_case
from command_line import fuzzshard

from fuzzshard import __version__ as fuzzshard_version
from fuzzshard import pytest_entries, strategies, testing
from fuzzshard.case import codec
from fuzzshard.corpus.files import write_atomic
from fuzzshard.mending.mend import own_mends

pytest_plugins = ("pytester",)

DOCS = Path(__file__).parents[2] / "docs"
INSTALLED = any(
    point.name == "fuzzshard" for point in importlib.metadata.entry_points(group="pytest11")
)
PLUGIN = () if INSTALLED else ("-p", "fuzzshard.pytest_plugin")
LOADED = (pytest_entries, strategies, testing)
"""A run in this process forgets what it imports; loaded before it, that is not imported again and
again.
"""


def commands(text: str) -> list[str]:
    """The pytest command lines in a page or a workflow."""
    return re.findall(r"^(?:\s*run: )?pytest (.*?)(?:\s+# .*)?$", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "page", ["ci.md", "github-actions.yml", "../.github/workflows/nightly.yml"]
)
def test_every_command_collects_the_corpus(pytester: pytest.Pytester, page: str) -> None:
    write_atomic(pytester.path / "corpus" / "resharded.json", codec.encode(make_case()))
    (pytester.path / "tests").mkdir()
    lines = commands((DOCS / page).read_text())
    assert lines
    for line in lines:
        words = shlex.split(line)
        result = pytester.runpytest_inprocess(*PLUGIN, *words, "--collect-only", "-q")
        result.stdout.fnmatch_lines(["corpus/resharded.json::*"])


MARKS = re.findall(r"^fuzzshard (corpus mark .*)$", (DOCS / "ci.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", MARKS)
def test_every_command_that_marks_an_entry_writes_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    saved = DOCS.parent / "corpus" / "findings" / "divergence-ddp-local_gradient-3c8ed6e5"
    shutil.copytree(saved, tmp_path / "corpus" / "findings" / "NAME")
    monkeypatch.chdir(tmp_path)
    value = shlex.split(command)[-1].encode()
    assert value not in Path("corpus/findings/NAME/case.json").read_bytes()
    assert fuzzshard(*shlex.split(command)) == 0
    assert value in Path("corpus/findings/NAME/case.json").read_bytes()


def test_the_examples_of_strategies_pass(pytester: pytest.Pytester) -> None:
    page = (DOCS / "strategies.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    pytester.makepyfile(**{f"test_{i}": example for i, example in enumerate(examples)})
    result = pytester.runpytest_inprocess("-q")
    result.assert_outcomes(passed=len(examples))


def test_the_example_of_a_test_is_one(pytester: pytest.Pytester) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "ci.md").read_text(), flags=re.DOTALL)
    pytester.makepyfile(test_parity=example)
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    result.stdout.fnmatch_lines(["test_parity.py::test_sharding_changes_nothing"])


def test_the_case_by_hand_is_the_same_in_json_and_in_python() -> None:
    page = (DOCS / "how-to" / "case-by-hand.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert codec.decode(text) == names["case"]


def test_every_change_that_waits_for_a_release_is_of_a_kind_that_the_changelog_has() -> None:
    config = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in config["type"])
    names = {file.name for file in (DOCS.parent / config["directory"]).iterdir()}
    wrong = [n for n in names if not re.fullmatch(rf"\+?[\w-]+\.({kinds})\.md", n)]
    assert wrong == config["ignore"] == ["README.md"]
    changelog = (DOCS.parent / config["filename"]).read_text()
    assert changelog.count(config["start_string"]) == 1
    assert f"\n## {fuzzshard_version} (" in changelog.partition(config["start_string"])[2]


WEIGHTS_IN_README = {
    "bug": "are bugs that a maintainer would fix",
    "exotic": "are real and exotic",
    "limitation": "are limitations",
}


def test_the_readme_counts_the_known_bugs_by_weight() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    weights = Counter(mend.weight for mend in own_mends().values())
    assert f"a fix for each of {len(own_mends())} known bugs" in readme
    for weight, words in WEIGHTS_IN_README.items():
        assert f"{weights[weight]} {words}" in readme
