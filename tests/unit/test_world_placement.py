from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.errors import UsageError
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.placement import (
    RANKS_PER_CORE,
    WORLDS_PER_DEVICE_SET,
    available_cores,
    check_cores,
    cores_of,
    place_on_cpu,
    place_on_devices,
)


def test_auto_on_a_cpu_gives_each_rank_a_core() -> None:
    assert place_on_cpu("auto", 2, 32) == 16
    assert place_on_cpu("auto", 4, 10) == 2


def test_a_machine_with_too_few_cores_has_one_world_all_the_same() -> None:
    assert place_on_cpu("auto", 4, 2) == 1


@pytest.mark.parametrize(("size", "ranks_on_each"), [(2, [1, 1]), (4, [2, 2]), (8, [4, 4])])
def test_ranks_that_fill_all_cores_evenly_keep_to_one_each(
    size: int, ranks_on_each: list[int]
) -> None:
    placed = [cores_of(rank, size, {3, 7}) for rank in range(size)]
    assert [placed.count({core}) for core in (3, 7)] == ranks_on_each


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_ranks_that_do_not_are_placed_by_the_kernel(size: int) -> None:
    assert all(cores_of(rank, size, range(4)) == {0, 1, 2, 3} for rank in range(size))


def test_a_world_of_more_ranks_than_cores_can_run_is_refused() -> None:
    check_cores(2 * RANKS_PER_CORE, 2)
    with pytest.raises(UsageError, match=f"use --world-size {2 * RANKS_PER_CORE} or less"):
        check_cores(2 * RANKS_PER_CORE + 1, 2)


def test_a_campaign_on_a_cpu_has_no_world_of_a_million_ranks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too large for the"):
        CampaignOptions(corpus=tmp_path, device="cpu", world_size=10**6).world_configs()


def test_a_number_of_worlds_is_taken_as_it_is() -> None:
    assert place_on_cpu(5, 4, 2) == 5


def test_worlds_get_disjoint_devices_as_long_as_there_are_any() -> None:
    assert place_on_devices(2, 2, 5, 64) == [(0, 1), (2, 3)]


def test_more_worlds_than_sets_of_devices_share_them_in_turn() -> None:
    assert place_on_devices(5, 2, 4, 64) == [(0, 1), (2, 3), (0, 1), (2, 3), (0, 1)]


def test_auto_puts_several_worlds_on_each_set_of_devices_where_there_are_cores_for_them() -> None:
    assert len(place_on_devices("auto", 2, 4, 64)) == 2 * WORLDS_PER_DEVICE_SET
    assert place_on_devices("auto", 2, 4, 6) == [(0, 1), (2, 3), (0, 1)]
    assert place_on_devices("auto", 4, 8, 1) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_world_larger_than_the_devices_is_refused_however_many_worlds_there_are() -> None:
    with pytest.raises(UsageError, match="needs 3 CUDA devices and there are 2"):
        place_on_devices(4, 3, 2, 64)


def test_worlds_whose_ranks_may_share_devices_get_fewer_of_them() -> None:
    assert place_on_devices(3, 4, 4, 64, 2) == [(0, 1), (2, 3), (0, 1)]
    assert place_on_devices(1, 5, 4, 64, 2) == [(0, 1, 2)]
    assert place_on_devices(2, 2, 2, 64, 8) == [(0,), (1,)]


def test_more_ranks_than_devices_take_are_refused_with_how_many_would_have_to_share_one() -> None:
    with pytest.raises(UsageError, match="needs 3 CUDA devices") as caught:
        place_on_devices(1, 6, 2, 64, 2)
    assert "use --world-size 4, --ranks-per-device 3 or --device cpu" in str(caught.value)


def test_a_device_that_is_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="name each once"):
        WorldConfig(size=2, device="cuda", devices=(0, 0))


def test_ranks_take_devices_in_turn_and_ranks_of_one_host_have_a_device_each() -> None:
    config = WorldConfig(size=5, device="cuda", devices=(4, 6))
    placed = [(config.host_of(rank), config.device_of(rank)) for rank in range(5)]
    assert placed == [(0, 4), (0, 6), (1, 4), (1, 6), (2, 4)]
    assert config.ranks_per_device == 3
    assert WorldConfig(size=8, device="cuda").ranks_per_device == 1


def test_a_rank_has_the_device_of_its_world() -> None:
    assert WorldConfig(size=2, device="cuda", devices=(4, 6)).device_of(1) == 6
    assert WorldConfig(size=2, device="cuda").device_of(1) == 1


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzzshard.world.device.cuda_devices", lambda: 4)


@pytest.mark.usefixtures("four_devices")
def test_the_worlds_of_a_campaign_differ_in_their_devices_only(tmp_path: Path) -> None:
    configs = CampaignOptions(corpus=tmp_path, world_size=2, worlds=3).world_configs()
    assert [config.devices for config in configs] == [(0, 1), (2, 3), (0, 1)]
    assert {(config.size, config.device) for config in configs} == {(2, "cuda")}


@pytest.mark.usefixtures("four_devices")
def test_a_campaign_takes_as_many_ranks_as_may_share_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzshard.world.device.available_cores", lambda: 4)
    options = CampaignOptions(corpus=tmp_path, ranks_per_device=2)
    (config,) = options.world_configs()
    assert (config.size, config.devices) == (8, (0, 1, 2, 3))
    assert dataclasses.replace(options, device="cpu").world_configs()[0].size == 4


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_container_limits_the_cores(
    tmp_path: Path, files: dict[str, str], cores: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == (cores or len(os.sched_getaffinity(0)))
