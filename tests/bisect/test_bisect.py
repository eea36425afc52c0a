"""Bisection over versions, with interpreters that stand in for environments of torch."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import verdicts
from command_line import fuzzshard

from fuzzshard.bisect import environment as environments
from fuzzshard.bisect.bisect import (
    Bisection,
    Result,
    Tried,
    between,
    boundaries,
    parse_versions,
    search,
)
from fuzzshard.bisect.environment import CannotInstall, Source, environment
from fuzzshard.contracts.contract import OLDEST_TORCH
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import with_observation
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.errors import UsageError

PRINTED = {
    "2.9.1": "ImportError: cannot import name 'fully_shard'",
    "2.10.0": "AssertionError: expected 2, observed 1",
    "2.11.0": "",
    "2.14.0": "",
}


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return save_unshrunk(tmp_path / "corpus", verdicts.entry(), "print('script')\n")


def stub(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python_that_prints(folder: Path, version: str) -> Path:
    """An interpreter that runs every script as that version of torch would."""
    text = PRINTED[version]
    return stub(folder / version / "python", f'echo "{text}" >&2; exit {int(bool(text))}')


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str], Path]:
    installed: list[str] = []

    def installing(version: str) -> Path:
        installed.append(version)
        if version not in PRINTED:
            raise CannotInstall(f"there is no version of torch=={version}")
        return python_that_prints(tmp_path, version)

    installing.installed = installed  # type: ignore[attr-defined]
    return installing


def bisect(
    folder: Path,
    entry: CorpusEntry,
    versions: list[str],
    install: Callable[[str], Path],
    *,
    again: bool = False,
) -> list[Tried]:
    bisection = Bisection(folder, entry, install, again=again)
    return [bisection.tried(version) for version in versions]


def results(tried: list[Tried]) -> dict[str, Result]:
    return {each.version: each.result for each in tried}


def test_every_version_says_bad_or_good_or_why_it_cannot(entry: Path, install) -> None:
    versions = ["2.9.1", "2.10.0", "2.11.0", "9.0"]
    tried = list(bisect(entry, read_entry(entry / "case.json"), versions, install))
    assert results(tried) == {
        "2.9.1": Result.CANNOT_RUN,
        "2.10.0": Result.BAD,
        "2.11.0": Result.GOOD,
        "9.0": Result.CANNOT_INSTALL,
    }
    assert "cannot import name" in tried[0].detail
    assert "no version" in tried[3].detail
    written = read_entry(entry / "case.json")
    assert (written.bad_on, written.good_on) == (("2.10.0", "2.13.0"), ("2.11.0",))


def test_an_interrupted_bisection_goes_on_where_it_stopped(entry: Path, install) -> None:
    def interrupted(version: str) -> Path:
        if version == "2.11.0":
            raise KeyboardInterrupt
        return install(version)

    with pytest.raises(KeyboardInterrupt):
        list(bisect(entry, read_entry(entry / "case.json"), ["2.10.0", "2.11.0"], interrupted))
    assert read_entry(entry / "case.json").bad_on == ("2.10.0", "2.13.0")
    install.installed.clear()
    tried = list(bisect(entry, read_entry(entry / "case.json"), ["2.10.0", "2.11.0"], install))
    assert install.installed == ["2.11.0"]
    assert [each.known for each in tried] == [True, False]


def test_again_corrects_what_is_known(
    entry: Path, install, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(bisect(entry, read_entry(entry / "case.json"), ["2.10.0"], install))
    monkeypatch.setitem(PRINTED, "2.10.0", "")
    list(bisect(entry, read_entry(entry / "case.json"), ["2.10.0"], install, again=True))
    written = read_entry(entry / "case.json")
    assert (written.bad_on, written.good_on) == (("2.13.0",), ("2.10.0",))


def test_a_version_without_the_finding_that_is_the_newest_makes_it_fixed(
    entry: Path, install
) -> None:
    file = entry / "case.json"
    open_since = with_observation(read_entry(file), "2.10.0", present=True)
    file.write_bytes(encode_entry(with_observation(open_since, "2.13.0", present=False)))
    assert read_entry(file).lifecycle is Lifecycle.FIXED
    list(bisect(entry, read_entry(file), ["2.14.0"], lambda _: install("2.10.0")))
    assert read_entry(file).lifecycle is Lifecycle.OPEN
    list(bisect(entry, read_entry(file), ["2.15.0"], lambda _: install("2.11.0")))
    assert read_entry(file).lifecycle is Lifecycle.FIXED


def test_builds_of_one_release_are_one_version(entry: Path, install) -> None:
    (known,) = bisect(entry, read_entry(entry / "case.json"), ["2.13.0+cpu"], install)
    assert (known.known, known.result) == (True, Result.BAD)
    list(
        bisect(
            entry,
            read_entry(entry / "case.json"),
            ["2.13.0+cpu"],
            lambda _: install("2.10.0"),
            again=True,
        )
    )
    assert read_entry(entry / "case.json").bad_on == ("2.13.0",)


def test_versions_are_sorted_and_each_is_tried_once() -> None:
    assert parse_versions("2.10.0, 2.9.1,2.10") == ["2.9.1", "2.10.0"]
    assert parse_versions("2.16.dev20261120,2.11+cpu") == ["2.11.0+cpu", "2.16.0.dev20261120"]


@pytest.mark.parametrize("text", ["", ",", "latest", "2.x"])
def test_what_is_no_version_is_an_error_of_usage(text: str) -> None:
    with pytest.raises(UsageError):
        parse_versions(text)


RELEASES = ["2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0"]


def searched(
    bad: str, *, known: dict[str, Result] | None = None, odd: str = ""
) -> tuple[list[str], list[str]]:
    """What is tried, and the boundaries, where versions in ``bad`` are and those in ``odd`` cannot
    be run.
    """

    def try_one(version: str) -> Tried:
        if version in odd:
            return Tried(version, Result.CANNOT_RUN)
        return Tried(version, Result.BAD if version in bad else Result.GOOD)

    given = [Tried(version, result, known=True) for version, result in (known or {}).items()]
    tried = list(search(RELEASES, given, try_one))
    return [each.version for each in tried if not each.known], boundaries(results(tried))


@pytest.mark.parametrize(
    ("bad", "tried", "said"),
    [
        (
            "2.12.1 2.13.0 2.14.0 2.14.1 2.15.0",
            ["2.11.0", "2.15.0", "2.13.0", "2.12.1", "2.12.0"],
            ["first bad: 2.12.1 (2.12.0 is good)"],
        ),
        (
            "2.11.0 2.12.0 2.12.1 2.13.0 2.14.0 2.14.1",
            ["2.11.0", "2.15.0", "2.13.0", "2.14.1"],
            ["bad from 2.11.0 on, the oldest tried", "first good: 2.15.0 (2.14.1 is bad)"],
        ),
        (" ".join(RELEASES), ["2.11.0", "2.15.0"], ["bad on all tried, from 2.11.0 to 2.15.0"]),
        ("", ["2.11.0", "2.15.0"], ["good on all tried, from 2.11.0 to 2.15.0"]),
    ],
)
def test_a_search_halves_what_is_between_two_versions_that_differ(
    bad: str, tried: list[str], said: list[str]
) -> None:
    assert searched(bad) == (tried, said)


def test_a_search_finds_where_a_finding_came_and_where_it_went() -> None:
    tried, said = searched("2.13.0 2.14.0", known={"2.13.0": Result.BAD})
    assert said == ["first bad: 2.13.0 (2.12.1 is good)", "first good: 2.14.1 (2.14.0 is bad)"]
    assert "2.13.0" not in tried
    assert len(tried) < len(RELEASES)


def test_a_search_steps_over_versions_that_cannot_be_judged() -> None:
    tried, said = searched("2.13.0 2.14.0 2.14.1 2.15.0", odd="2.11.0 2.12.1")
    assert tried[:3] == ["2.11.0", "2.12.0", "2.15.0"]
    assert said == ["first bad: 2.13.0 (2.12.0 is good; 2.12.1 could not be judged)"]
    assert searched("", odd=" ".join(RELEASES)) == (RELEASES, ["no version could be judged"])


@pytest.mark.parametrize(
    ("good", "bad", "versions"),
    [
        ("", "", RELEASES[3:]),
        ("2.13.0", "", RELEASES[3:]),
        ("", "2.14.0", RELEASES[3:5]),
        ("2.12.0", "2.13.0", RELEASES[1:4]),
        ("2.14.0", "2.13.0", RELEASES[3:5]),
        ("2.9.1", "2.11.0", ["2.9.1", "2.10.0", "2.11.0"]),
        ("2.12.2", "2.13.0", ["2.12.2", "2.13.0"]),
    ],
)
def test_a_search_is_between_its_bounds_or_of_what_is_supported(
    good: str, bad: str, versions: list[str]
) -> None:
    assert between(["2.9.1", "2.10.0", *RELEASES], good, bad) == versions


def test_bounds_with_nothing_between_are_an_error_of_usage() -> None:
    with pytest.raises(UsageError, match="no torch between"):
        between(RELEASES, "3.0", "")


def test_the_oldest_release_is_the_one_that_is_asked_for_at_install() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"torch>={OLDEST_TORCH}" in project["project"]["dependencies"]


def test_one_build_of_each_release_is_tried_and_no_release_candidate() -> None:
    listed = ["2.13.0+cpu", "2.13.0", "2.12.0rc1", "2.12.0", "2.16.0.dev20261120+cpu", "odd"]
    newest, choose = "2.16.0.dev20261120+cpu", environments.choose
    assert choose(listed, cpu=True) == ["2.12.0", "2.13.0+cpu", newest]
    assert choose(listed, cpu=False) == ["2.12.0", "2.13.0", newest]


def test_the_releases_are_those_that_pip_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "torch (2.13.0)\nAvailable versions: 2.13.0, 2.12.1\n"
    pip = stub(tmp_path / "pip", f'echo "$@" > {tmp_path}/asked; printf "{text}"')
    monkeypatch.setattr(environments, "_pip", lambda: [str(pip)])
    source = Source(index_url="https://example.org")
    assert environments.versions_of_torch(source, cpu=False) == ["2.12.1", "2.13.0"]
    asked = (tmp_path / "asked").read_text()
    assert asked == ("index versions torch --pre --index-url https://example.org\n")


def test_an_index_that_does_not_answer_is_said_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip = stub(tmp_path / "pip", 'echo "ERROR: No matching distribution for torch" >&2; exit 1')
    monkeypatch.setattr(environments, "_pip", lambda: [str(pip)])
    with pytest.raises(UsageError, match="releases of torch: No matching distribution for torch"):
        environments.versions_of_torch(Source(), cpu=False)


def fake_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pip: str) -> Path:
    """A uv that makes a folder for ``uv venv`` and does ``pip`` for ``uv pip install``; its log of
    calls.
    """
    log = tmp_path / "uv.log"
    uv = stub(
        tmp_path / "uv",
        f'echo "$@" >> {log}\nfor last; do :; done\n'
        f'if [ "$1" = venv ]; then mkdir -p "$last/bin"; touch "$last/bin/python"; else {pip}; fi',
    )
    monkeypatch.setattr(environments, "find_uv", lambda: str(uv))
    return log


def test_an_environment_is_made_once_and_options_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = fake_uv(monkeypatch, tmp_path, "true")
    source = Source(index_url="https://example.org/cpu")
    first = environment("2.10.0", tmp_path / "cache", source)
    assert first == environment("2.10.0", tmp_path / "cache", source)
    made, installed = log.read_text().splitlines()
    assert made.startswith("venv")
    assert "--index-url https://example.org/cpu torch==2.10.0 numpy" in installed
    assert environment("2.10.0", tmp_path / "cache", Source()) != first


def test_other_packages_do_not_come_from_the_index_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = fake_uv(monkeypatch, tmp_path, "true")
    source = Source(index_url="https://example.org/cpu")
    environment("2.10.0", tmp_path / "cache", source, others=["msgspec>=0.19"])
    _, with_torch, others = log.read_text().splitlines()
    assert with_torch.endswith("https://example.org/cpu torch==2.10.0 numpy")
    assert others.endswith("python msgspec>=0.19")


def test_an_environment_that_was_interrupted_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = fake_uv(monkeypatch, tmp_path, "true")
    python = environment("2.10.0", tmp_path / "cache", Source())
    (python.parents[1] / environments.READY).unlink()
    environment("2.10.0", tmp_path / "cache", Source())
    assert len(log.read_text().splitlines()) == 4


def test_why_a_version_cannot_be_installed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    says = "  \u00d7 No solution found\\n  ╰─▶ Because there is no version of torch==9.0"
    fake_uv(monkeypatch, tmp_path, f'printf "{says}" >&2; exit 1')
    with pytest.raises(CannotInstall) as caught:
        environment("9.0", tmp_path / "cache", Source())
    assert str(caught.value) == "No solution found Because there is no version of torch==9.0"
    assert not list((tmp_path / "cache").iterdir())


def test_the_command_prints_a_line_for_each_version_and_a_summary(
    entry: Path, install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels: dict[str, str] = {}

    def made(version: str, cache: Path, source: Source) -> Path:
        wheels[version] = source.index_url
        return install(version)

    monkeypatch.setattr("fuzzshard.commands.bisect.environment", made)
    monkeypatch.setattr(
        "fuzzshard.commands.bisect.versions_of_torch",
        lambda *_, **__: ["2.10.0+cpu", "2.11.0+cpu"],
    )
    assert fuzzshard("bisect", entry, "--torch", "2.11,2.10.0,9.0") == 1
    cpu = environments.CPU_INDEX
    assert wheels == {"2.10.0": cpu, "2.11.0": cpu, "9.0.0": ""}
    _, bad, good, missing, boundary, last = capsys.readouterr().out.splitlines()
    assert bad.split()[:3] == ["torch", "2.10.0", "bad"]
    assert good.split()[:3] == ["torch", "2.11.0", "good"]
    assert "cannot install" in missing
    assert [boundary, last] == [
        "bad from 2.10.0 on, the oldest tried",
        "first good: 2.11.0 (2.10.0 is bad)",
    ]
    assert fuzzshard("bisect", entry, "--torch", "2.11.0") == 0
    assert fuzzshard("bisect", entry, "--torch", "9.0") == 3


def test_the_command_searches_and_takes_wheels_for_the_cpu_where_they_can_be_listed(
    entry: Path, install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def listing(source: Source, *, cpu: bool) -> list[str]:
        asked.append(source.index_url)
        if source.index_url == environments.CPU_INDEX and len(asked) == 1:
            raise UsageError("pip cannot list the releases of torch: no route")
        return ["2.9.1", "2.10.0", "2.11.0", "2.13.0", "2.14.0"]

    monkeypatch.setattr("fuzzshard.commands.bisect.versions_of_torch", listing)
    monkeypatch.setattr(
        "fuzzshard.commands.bisect.environment", lambda version, cache, source: install(version)
    )
    assert fuzzshard("bisect", entry, "--good", "2.11.0", "--bad", "2.10.0") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("no route; going on with the usual index")
    assert lines[2:] == [
        "2 versions from 2.10.0 to 2.11.0",
        "torch 2.10.0  bad             as you say",
        "torch 2.11.0  good            as you say",
        "bad from 2.10.0 on, the oldest tried",
        "first good: 2.11.0 (2.10.0 is bad)",
    ]
    assert fuzzshard("bisect", entry) == 1
    assert asked == [environments.CPU_INDEX, "", environments.CPU_INDEX]
    assert install.installed == ["2.14.0"]
    assert capsys.readouterr().out.splitlines()[-1] == "first good: 2.14.0 (2.13.0 is bad)"
    assert read_entry(entry / "case.json").good_on == ("2.14.0",)


def test_what_cannot_be_bisected_is_an_error_of_usage(
    entry: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzzshard("bisect", entry / "unshrunk.json", "--torch", "2.10.0") == 2
    assert fuzzshard("bisect", entry, "--torch", "latest") == 2
    assert fuzzshard("bisect", entry, "--torch", "2.10.0", "--runs", "0") == 2
    assert fuzzshard("bisect", entry, "--torch", "2.10.0", "--good", "2.9.1") == 2
    assert fuzzshard("bisect", entry, "--good", "2.9.1,2.10.0") == 2
    (entry / "repro.py").write_text("# No reproducer could be generated: none\n")
    assert fuzzshard("bisect", entry, "--torch", "2.10.0") == 2
    assert all(line.startswith("fuzzshard: ") for line in capsys.readouterr().err.splitlines())
