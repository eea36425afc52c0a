from __future__ import annotations

from pathlib import Path

import pytest

from fuzzshard.commands.options import parse_duration, world_config
from fuzzshard.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("0.5m", 30),
        ("45", 45),
        ("1.5", 1.5),
    ],
)
def test_a_duration_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-5s", "5x", "s", "10m5", "1 m", "nan", "inf", "1.2.3", "m10", "1e9"]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 10m or 2h"):
        parse_duration(text)


def test_more_ranks_than_cuda_devices_are_refused_with_the_number_that_works() -> None:
    with pytest.raises(
        UsageError, match="use --world-size 2, --ranks-per-device 2 or --device cpu"
    ):
        world_config("cuda", 2, (), size=3)


def test_ranks_share_cuda_devices_only_where_they_are_told_to() -> None:
    assert world_config("cuda", 2, (), size=3, ranks_per_device=2).devices == (0, 1)
    assert world_config("cuda", 2, (), size=2).devices == ()
    assert world_config("cpu", 4, (), size=8, ranks_per_device=2).devices == ()


def test_more_ranks_than_the_default_are_fine_on_a_cpu() -> None:
    assert world_config("cpu", 4, (), size=6).size == 6


@pytest.mark.parametrize("size", [0, -1])
def test_a_world_without_ranks_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="runs nothing"):
        world_config("cpu", 4, (), size=size)


def test_a_file_to_preload_must_exist_and_is_passed_on_with_its_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"fault\.py"):
        world_config("cpu", 4, (Path("fault.py"),), size=2)
    (tmp_path / "fault.py").touch()
    assert world_config("cpu", 4, (Path("fault.py"),), size=2).preload == (
        str(tmp_path / "fault.py"),
    )
