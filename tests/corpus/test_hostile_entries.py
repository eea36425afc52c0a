"""Saved entries that somebody means harm with: nothing in one is run, hides another or ends a
command.

``benchmarks/hostile_entries.py`` makes them, says what is in them, and tries many more.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hostile_entries import (
    CANARY,
    RUNS,
    Figures,
    calls,
    commands,
    hostile,
    journals,
    judge,
    known_calls,
    obeyed,
    sources,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzshard.cli import main
from fuzzshard.corpus.causes import by_cause
from fuzzshard.corpus.codec import decode_entry, read_entry
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.scripts import script_of
from fuzzshard.corpus.store import saved_script
from fuzzshard.corpus.verify import Condition, verify
from fuzzshard.errors import EXIT_USAGE, InvalidEntry, UsageError
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.oracle import TensorType
from fuzzshard.parts.statements import at
from fuzzshard.printable import comment
from fuzzshard.reproducer.assemble import scripts
from fuzzshard.reproducer.assertion import Assertion

ORIGINALS = functools.cache(sources)


@functools.cache
def known() -> set[str]:
    return known_calls(ORIGINALS())


def copy(document: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


def a_finding(oracle: str) -> dict[str, Any]:
    """A saved entry whose first finding is of an oracle."""
    return copy(
        next(
            each
            for each in ORIGINALS()
            if each.get("findings") and each["findings"][0]["oracle"] == oracle
        )
    )


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(InvalidEntry) as caught:
        decode_entry(json.dumps(document).encode(), Path("case.json"))
    return str(caught.value)


@settings(max_examples=300, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.data())
def test_no_field_of_an_entry_runs_code_or_ends_in_a_traceback(data: st.DataObject) -> None:
    known()
    document = copy(data.draw(st.sampled_from(ORIGINALS())))
    donor = data.draw(st.sampled_from(ORIGINALS()))
    figures = Figures()
    place = hostile(document, donor, lambda offered: data.draw(st.sampled_from(offered)))
    judge(document, known(), figures, ".".join(map(str, place)))

    assert figures.harm == 0, figures.shown


def test_a_damaged_journal_is_one_line() -> None:
    figures = Figures()
    journals(figures)

    assert figures.harm == 0, figures.shown
    assert figures.accepted
    assert figures.refused


def test_calls_that_hide_in_texts_of_a_script_are_found() -> None:
    assert "system" in calls(f'f"rank {{{RUNS}}}"')
    assert "__import__" in calls(f"x = model.weight if [{RUNS}] else 0")


@pytest.mark.parametrize("field", ["name", "oracle", "engine"])
def test_a_finding_that_names_what_no_model_has_is_refused(field: str) -> None:
    document = a_finding("gradient")
    document["findings"][0][field] = f"linear0.weight if [{RUNS}] else 0"

    assert RUNS.partition("'")[0] in refusal(document)


@pytest.mark.parametrize("engine", ["", REFERENCE.name])
def test_a_finding_that_accuses_no_engine_can_be_read(engine: str) -> None:
    document = a_finding("gradient")
    document["findings"][-1]["engine"] = engine

    entry = decode_entry(json.dumps(document).encode(), Path("case.json"))

    assert entry.findings[-1].engine == engine


def test_a_torch_that_is_no_version_is_refused() -> None:
    document = a_finding("gradient") | {"torch": f"2.15.0\n{RUNS}"}

    assert "write the version of torch as" in refusal(document)


@pytest.mark.parametrize("op", [-2, 10**4])
def test_a_finding_at_an_op_that_is_not_there_is_refused(op: int) -> None:
    document = a_finding("gradient")
    document["findings"][0]["op"] = op

    assert "which is not there" in refusal(document)


def test_whatever_checking_raises_costs_one_entry(tmp_path: Path) -> None:
    good, bad = a_finding("gradient"), a_finding("gradient")
    forward = next(op for op in bad["case"]["schedule"] if op["type"] == "forward")
    forward["outputs"] = [5]
    for name, document in (("good", good), ("bad", bad)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "case.json").write_text(json.dumps(document))

    stored, broken = load([tmp_path])

    assert [item.file.parent.name for item in stored] == ["good"]
    assert [str(error).count("\n") for error in broken] == [0]


@pytest.mark.parametrize("command", [("corpus", "list"), ("explain",)])
def test_commands_name_a_bad_entry_and_go_on(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, mesh in (("good", 4), ("other", 4), ("bad", -1)):
        document = a_finding("gradient")
        document["case"]["mesh"] = {"shard": mesh}
        document["device"] = "cuda"
        (tmp_path / name).mkdir()
        (tmp_path / name / "case.json").write_text(json.dumps(document))

    with pytest.raises(SystemExit) as ended:
        main([*command, str(tmp_path)])

    said = capsys.readouterr().out
    assert ended.value.code == EXIT_USAGE
    assert [
        name for name in ("good", "other") if f"{name} " not in f"{said} ".replace("\n", " ")
    ] == []
    assert f"INVALID   {tmp_path / 'bad'}" in said


def test_a_mesh_without_end_is_refused() -> None:
    document = a_finding("gradient")
    document["case"]["mesh"]["shard"] = 2**31

    assert "shard is 2147483648" in refusal(document)


def test_a_mesh_of_many_axes_is_refused() -> None:
    document = a_finding("gradient")
    document["case"]["mesh"] |= {"shard": 2**20, "replicate": 2**20}

    assert "the mesh has" in refusal(document)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "case.json")

    with pytest.raises(InvalidEntry, match="not a regular file"):
        read_entry(tmp_path / "case.json")


def test_escapes_of_terminals_are_read_as_text() -> None:
    document = a_finding("gradient")
    document["findings"][0]["observed"] = "\x1b]0;owned\x07"
    document["stacks"] = {"\x9b2J": "one\n\ttwo\x1b[2J"}
    entry = decode_entry(json.dumps(document).encode(), Path("case.json"))

    assert entry.findings[0].observed == r"\x1b]0;owned\x07"
    assert entry.stacks == {r"\x9b2J": "one\n\ttwo\\x1b[2J"}
    assert not obeyed(script_of(entry, scripts))


def test_an_entry_without_a_script_is_stale_and_stops_nothing(tmp_path: Path) -> None:
    document = a_finding("gradient")
    document["findings"] = document["findings"][:1]
    document["findings"][0]["oracle"] = "hooks"
    document["findings"][0]["expected"] = "no number"
    document["reduced"] = ""  # such a script is no longer written
    (tmp_path / "case.json").write_text(json.dumps(document))
    (tmp_path / "repro.py").write_text("print()\n")

    verified = verify(tmp_path / "case.json", scripts)

    assert verified.condition is Condition.STALE
    assert "writes no script" in verified.message


def test_the_reason_why_there_is_no_script_stays_one_comment() -> None:
    def fails(*_: object, **__: object) -> list[str]:
        raise UsageError(f"no\n{RUNS}", "no\rway")

    entry = decode_entry(json.dumps(a_finding("gradient")).encode(), Path("case.json"))

    assert script_of(entry, fails).count("\n") == 1
    assert calls(script_of(entry, fails)) == set()


def test_what_a_script_looks_at_has_no_quotes_of_its_own() -> None:
    for harm in ('"', "{x}", "a\nb", "\\"):
        with pytest.raises(UsageError):
            Assertion("compare", "fully_shard", name=harm)
        with pytest.raises(UsageError):
            Assertion("compare", "fully_shard", expected=harm)


@pytest.mark.parametrize("target", [RUNS, "../../x", "import os"])
def test_an_op_of_no_path_is_refused(target: str) -> None:
    document = a_finding("gradient")
    document["case"]["schedule"].insert(0, {"type": "reshard", "target": target})

    assert "which is no path" in refusal(document)


def test_causes_are_those_of_entries_with_findings(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        document = a_finding("gradient")
        (tmp_path / name).mkdir()
        document["findings"] = document["findings"] if name == "good" else []
        document["cause"] = "" if name == "bad" else document["cause"]
        (tmp_path / name / "case.json").write_text(json.dumps(document))

    (cause,) = by_cause(load([tmp_path])[0])

    assert cause.entries == ("good",)


def test_a_script_that_is_no_text_is_none_to_run(tmp_path: Path) -> None:
    (tmp_path / "repro.py").write_bytes(b"\xff")

    assert saved_script(tmp_path / "case.json") is None


def test_a_path_calls_nothing() -> None:
    assert at("model", "block0.linear0") == "model.block0.linear0"
    with pytest.raises(UsageError, match="no path"):
        at("model", f"weight if [{RUNS}] else 0")


def test_a_type_in_a_finding_names_a_dtype_of_torch() -> None:
    assert TensorType.read("a tensor of shape [2], torch.float32") is not None
    assert TensorType.read("a tensor of shape [2], os.abort") is None


def test_comments_are_one_line_whatever_is_in_them() -> None:
    for text in ('"', "'''\n", "\\", "\u2028", "{x}", "\x00"):
        assert len(comment(text).splitlines()) <= 1


@pytest.mark.slow
def test_no_command_that_runs_scripts_runs_a_text(tmp_path: Path) -> None:
    document = a_finding("gradient")
    document["notes"] = {"repro.py": RUNS, RUNS: RUNS}
    document["findings"][0]["observed"] = f'"""\n{RUNS}\n"""'
    figures = Figures()
    commands([document], 1, 0, figures)

    assert figures.commands
    assert figures.harm == 0, figures.shown
    assert not Path(CANARY).exists()
