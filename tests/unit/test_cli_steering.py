"""Options of ``run`` that steer a campaign, and ``fuzzshard features``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import graph

from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.analysis.steering import Steering
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.case import codec
from fuzzshard.case.case import Case, Inputs, Mesh, TensorSpec
from fuzzshard.cli import main
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward

CASE = Case(
    seed=0,
    model=graph("h = a(x)", a=Linear(out=4)),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward()),
)


PAGE = Path(__file__).parents[2] / "docs" / "steering.md"


def commands(language: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of the page's blocks in a language, with what is printed below it."""
    for block in re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        if language == "sh":
            yield from ((line, []) for line in block.splitlines())
        for shown in block.split("$ ")[1:]:
            command, *printed = shown.splitlines()
            yield command, printed


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CampaignOptions]:
    """What campaigns were asked for."""
    options: list[CampaignOptions] = []
    monkeypatch.setattr(
        "fuzzshard.campaign.loop.run_campaign", lambda asked, sink: options.append(asked) or 0
    )
    return options


def test_globs_follow_an_option_or_it_is_repeated(asked) -> None:
    call(
        "run", "--require", "mesh:2", "checkpoint:*", "--exclude", "leaf:mlp", "--require", "op:*"
    )
    assert asked[0].steering == Steering(
        require=("mesh:2", "checkpoint:*", "op:*"), exclude=("leaf:mlp",)
    )


def test_an_engine_is_a_feature_that_only_is_said_of(asked) -> None:
    call("run", "--engine", "fsdp1", "--engine", "ddp", "--only", "mesh:2")
    assert asked[0].steering == Steering(only=("mesh:2", "engine:fsdp1", "engine:ddp"))


def test_a_case_in_focus_is_read_from_its_file(asked, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(codec.encode(CASE))
    call("run", "--focus", str(file))
    assert asked[0].steering.focus == CASE
    assert asked[0].steering.focus_name.startswith(f"{file} (")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--require", "hsdp"), "--require hsdp matches no feature; did you mean mesh:hsdp?"),
        (("--focus", "nowhere.json"), "nowhere.json does not exist"),
        (
            ("--engine", "ddp", "--require", "fsdp1:*", "--exclude", "fsdp1:*"),
            "leaves no case to draw",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_bad_input(asked, capsys, arguments, said) -> None:
    assert call("run", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fuzzshard: ")
    assert said in line
    assert not asked


def test_features_are_listed_with_their_meanings_within_100_columns(capsys) -> None:
    assert call("features") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 100
    named = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(named) == sorted(FEATURES)
    assert "checkpoint: activation checkpointing" in lines


def test_features_can_be_chosen_and_have_shares(capsys) -> None:
    assert call("features", "mesh:[12]", "mesh:larger", "--shares", "60", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == ["mesh:1", "mesh:2", "mesh:larger"]
    assert rows[1]["percent"] > 20
    assert rows[2]["percent"] == 0
    assert rows[0]["meaning"] == FEATURES["mesh:1"]


def test_a_glob_without_a_feature_is_bad_input(capsys) -> None:
    assert call("features", "bf16") == 2
    assert "did you mean precision:bfloat16" in capsys.readouterr().err


@pytest.mark.parametrize("command", [command for command, _ in commands("sh")])
def test_commands_of_the_page_are_campaigns(asked, tmp_path: Path, command: str) -> None:
    file = tmp_path / "case.json"
    file.write_bytes(codec.encode(CASE))
    _, *arguments = shlex.split(command.replace("corpus/findings/NAME", str(file)))
    assert call(*arguments) == 0
    assert asked[0].steering != Steering()
    assert asked[0].max_time == 600


@pytest.mark.parametrize(
    ("command", "printed"), [pair for pair in commands("console") if " run " in pair[0]]
)
def test_what_the_page_shows_is_printed(asked, capsys, command: str, printed: list[str]) -> None:
    call(*shlex.split(command)[1:])
    assert capsys.readouterr().err.splitlines() == printed


def test_the_page_shows_what_features_prints_but_for_the_shares(capsys) -> None:
    ((command, printed),) = [pair for pair in commands("console") if " features " in pair[0]]
    call(*shlex.split(command.replace("--shares 500", "--shares 20"))[1:])
    shown, listed = (
        [re.sub("[ .0-9]{5} %", "", line) for line in lines]
        for lines in (printed, capsys.readouterr().out.splitlines())
    )
    assert shown == listed
