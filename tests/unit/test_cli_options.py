from __future__ import annotations

from pathlib import Path

import pytest

from fuzzshard.errors import UsageError
from fuzzshard.options import LARGEST_CPU_WORLD, RankOptions, parse_duration
from fuzzshard.world.device import cpu_ranks


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


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzzshard.world.device.cuda_devices", lambda: 2)


@pytest.mark.usefixtures("two_devices")
def test_more_ranks_than_cuda_devices_are_refused_with_the_number_that_works() -> None:
    with pytest.raises(
        UsageError, match="use --world-size 2, --ranks-per-device 2 or --device cpu"
    ):
        RankOptions().config(3)


@pytest.mark.usefixtures("two_devices")
def test_ranks_share_cuda_devices_only_where_they_are_told_to() -> None:
    assert RankOptions(ranks_per_device=2).config(3).devices == (0, 1)
    assert RankOptions().config(2).devices == ()
    assert RankOptions(device="cpu", ranks_per_device=2).config(8).devices == ()


def test_more_ranks_than_the_default_are_fine_on_a_cpu() -> None:
    assert RankOptions(device="cpu").config(6).size == 6


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    ("options", "usual", "most"),
    [
        (RankOptions(), 2, 2),
        (RankOptions(ranks_per_device=2), 4, 4),
        (RankOptions(device="cpu", ranks_per_device=2), 2, LARGEST_CPU_WORLD),
        (RankOptions(device="cpu", world_size=3), 3, 3),
    ],
)
def test_a_case_file_gets_no_more_ranks_than_somebody_asks_for(
    options: RankOptions, usual: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzshard.world.device.available_cores", lambda: 2)
    assert (options.usual, options.most) == (usual, most)


@pytest.mark.parametrize(("cores", "ranks"), [(1, 2), (2, 2), (3, 2), (4, 4), (64, 4)])
def test_ranks_on_a_cpu_have_a_core_each_if_two_do(cores: int, ranks: int) -> None:
    assert cpu_ranks(cores) == ranks


@pytest.mark.parametrize("size", [0, -1])
def test_a_world_without_ranks_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="runs nothing"):
        RankOptions(device="cpu").config(size)


def test_no_ranks_on_a_device_are_refused() -> None:
    with pytest.raises(UsageError, match="0 ranks per device run nothing"):
        RankOptions(device="cpu", ranks_per_device=0).config(1)


def test_a_file_to_preload_must_exist_and_is_passed_on_with_its_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = RankOptions(device="cpu", preload=(Path("fault.py"),))
    with pytest.raises(UsageError, match=r"fault\.py"):
        options.config(2)
    (tmp_path / "fault.py").touch()
    assert options.config(2).preload == (str(tmp_path / "fault.py"),)
