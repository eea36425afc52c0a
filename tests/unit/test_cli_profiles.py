from __future__ import annotations

from pathlib import Path

import pytest

from fuzzshard.analysis.steering import Steering
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.cli import main
from fuzzshard.commands.profiles import PROFILES


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CampaignOptions]:
    """What campaigns were asked for, in a folder below one with a ``pyproject.toml``."""
    options: list[CampaignOptions] = []

    def run_campaign(asked: CampaignOptions, sink: object) -> int:
        options.append(asked)
        return 0

    monkeypatch.setattr("fuzzshard.campaign.loop.run_campaign", run_campaign)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return options


def write(text: str) -> None:
    Path("../pyproject.toml").write_text(text)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("name", PROFILES)
def test_every_built_in_profile_is_a_campaign(asked, name):
    assert run("--profile", name) == 0
    assert len(asked) == 1


def test_the_profile_ci_has_a_fixed_seed_and_stops_after_five_minutes_or_a_finding(asked):
    run("--profile", "ci")
    assert (asked[0].seed, asked[0].max_time, asked[0].max_findings) == (1, 300, 1)


def test_a_profile_of_a_parents_pyproject_goes_on_top_of_a_built_in_one(asked):
    write(
        '[tool.fuzzshard.profiles.ci]\nmax-time = "90s"\nmax_cases = 7\nengine = ["ddp"]\nshrink '
        "= false\n"
    )
    run("--profile", "ci")
    assert (asked[0].seed, asked[0].max_time, asked[0].max_cases) == (1, 90, 7)
    assert (asked[0].steering.engines, asked[0].shrink) == (("ddp",), False)


def test_the_command_line_wins_over_the_profile(asked):
    run("--profile", "ci", "--seed", "5", "--max-time", "10m")
    assert (asked[0].seed, asked[0].max_time, asked[0].max_findings) == (5, 600, 1)


def test_a_profile_holds_what_steers_a_campaign(asked):
    write(
        "[tool.fuzzshard.profiles.hybrid]\n"
        'only = ["engine:*shard", "mesh:[24]"]\nexclude = "compile:*"\n'
        'require = ["checkpoint:*"]\nlike = "bf16"\n'
    )
    run("--profile", "hybrid", "--exclude", "leaf:dropout")
    assert asked[0].steering == Steering(
        only=("engine:*shard", "mesh:[24]"),
        exclude=("leaf:dropout",),
        require=("checkpoint:*", "precision:bfloat16"),
    )


def test_without_a_profile_a_pyproject_changes_nothing(asked):
    write("[tool.fuzzshard.profiles.ci]\nmax-cases = 7\n")
    run()
    assert asked[0].max_cases is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "",
            "there is no profile 'mine'; use one of ci, dev, nightly, soak, or write "
            "[tool.fuzzshard.",
        ),
        ("max-tmie = 1", "Did you mean --max-time?"),
        (
            'max-cases = "many"',
            "[max-cases] from the profile 'mine' of pyproject.toml takes a whole number",
        ),
        ("max-time = true", "is not a duration"),
        ("shrink = 7", 'takes true or false, not "7"'),
        ('engine = "horovod"', 'spmd, not "horovod"'),
        ('profile = "ci"', "the profile 'mine' names a profile"),
        ("max-cases = ", "pyproject.toml cannot be read: TOMLDecodeError"),
    ],
)
def test_what_is_wrong_with_a_profile_is_one_line(asked, capsys, text, said):
    write(f"[tool.fuzzshard.profiles.mine]\n{text}\n" if text else "")
    assert run("--profile", "mine") == 2
    assert not asked
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fuzzshard: ")
    assert said in line


def test_a_table_that_is_none_is_one_line(asked, capsys):
    write("[tool.fuzzshard]\nprofiles = 3\n")
    assert run("--profile", "ci") == 2
    assert "profiles in pyproject.toml is no table" in capsys.readouterr().err
