"""Bisection over versions, with interpreters that stand in for environments of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import fuzzshard

from fuzzshard.bisect import environment as environments
from fuzzshard.bisect.bisect import Result, Tried, bisect
from fuzzshard.bisect.environment import CannotInstall, Source, environment
from fuzzshard.bisect.versions import parse_versions, summary
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import make_entry
from fuzzshard.corpus.expectation import with_observation
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.doctor import clean_case
from fuzzshard.errors import UsageError
from fuzzshard.verdict import Finding, Status, Verdict

FINDING = Finding(oracle="gradient", engine="fully_shard", observed="1", expected="2")
VERDICT = Verdict(status=Status.DIVERGENCE, findings=(FINDING,))
INFO = {"torch": "2.13.0", "backend": "gloo"}

PRINTED = {
    "2.9.1": "ImportError: cannot import name 'fully_shard'",
    "2.10.0": "AssertionError: expected 2, observed 1",
    "2.11.0": "",
}


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return save_unshrunk(
        tmp_path / "corpus", make_entry(clean_case(2), VERDICT, INFO), "print('script')\n"
    )


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
    assert parse_versions("2.10.0, 2.9.1,2.10.0") == ["2.9.1", "2.10.0"]


@pytest.mark.parametrize("text", ["", ",", "latest", "2.x"])
def test_what_is_no_version_is_an_error_of_usage(text: str) -> None:
    with pytest.raises(UsageError):
        parse_versions(text)


@pytest.mark.parametrize(
    ("bad", "good", "said"),
    [
        (
            ["2.10.0", "2.9.1"],
            ["2.11.0", "2.8.0"],
            "first bad: 2.9.1; last good before it: 2.8.0; first good",
        ),
        (["2.10.0"], [], "first bad: 2.10.0; no good one after it"),
        ([], ["2.10.0"], "no version shows the finding; first good: 2.10.0"),
        ([], [], "no version could be judged"),
    ],
)
def test_the_summary_says_where_the_finding_came_and_went(
    bad: list[str], good: list[str], said: str
) -> None:
    assert summary(bad, good).startswith(said)


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
    source = Source(index_url="https://example.org/cpu", constraint=("pins.txt",))
    first = environment("2.10.0", tmp_path / "cache", source)
    assert first == environment("2.10.0", tmp_path / "cache", source)
    made, installed = log.read_text().splitlines()
    assert made.startswith("venv")
    assert (
        "--index-url https://example.org/cpu --constraint pins.txt torch==2.10.0 numpy"
        in installed
    )
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
    monkeypatch.setattr(
        environments, "environment", lambda version, cache, source: install(version)
    )
    assert fuzzshard("bisect", entry, "--torch", "2.11.0,2.10.0,9.0") == 1
    _, bad, good, missing, last = capsys.readouterr().out.splitlines()
    assert bad.split()[:3] == ["torch", "2.10.0", "bad"]
    assert good.split()[:3] == ["torch", "2.11.0", "good"]
    assert "cannot install" in missing
    assert last == "first bad: 2.10.0; first good after it: 2.11.0"
    assert fuzzshard("bisect", entry, "--torch", "2.11.0") == 0
    assert fuzzshard("bisect", entry, "--torch", "9.0") == 3


def test_what_cannot_be_bisected_is_an_error_of_usage(
    entry: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzzshard("bisect", entry / "unshrunk.json", "--torch", "2.10.0") == 2
    assert fuzzshard("bisect", entry, "--torch", "latest") == 2
    assert fuzzshard("bisect", entry, "--torch", "2.10.0", "--runs", "0") == 2
    (entry / "repro.py").write_text("# No reproducer could be generated: none\n")
    assert fuzzshard("bisect", entry, "--torch", "2.10.0") == 2
    assert all(line.startswith("fuzzshard: ") for line in capsys.readouterr().err.splitlines())
