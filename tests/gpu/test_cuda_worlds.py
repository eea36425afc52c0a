"""Several worlds on one CUDA node: devices of their own, shared devices, a spare."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from cases import make_case

from fuzzshard.campaign.judge import judge
from fuzzshard.verdict import Status
from fuzzshard.world import Spares, World, WorldConfig
from fuzzshard.world.device import cuda_devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_devices() == 0, reason="this machine has no CUDA device"),
]

LAST = max(0, cuda_devices() - 1)


def test_a_world_runs_on_the_device_that_it_is_given() -> None:
    with World(WorldConfig(size=1, device="cuda", devices=(LAST,))) as world:
        assert world.run(make_case(mesh=1)).status is Status.PASS


@pytest.mark.skipif(cuda_devices() < 2, reason="needs two devices")
def test_the_ranks_of_a_world_may_have_their_devices_in_any_order() -> None:
    with World(WorldConfig(size=2, device="cuda", devices=(1, 0))) as world:
        assert world.run(make_case()).status is Status.PASS


def test_two_ranks_of_a_world_share_a_device() -> None:
    with World(WorldConfig(size=2, device="cuda", devices=(LAST,))) as world:
        assert world.run(make_case()).status is Status.PASS


def test_two_worlds_share_their_devices_at_the_same_time() -> None:
    size = min(2, cuda_devices())
    config = WorldConfig(size=size, device="cuda", devices=tuple(range(size)))
    with World(config) as one, World(config) as other, ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(lambda world: [world.run(make_case(mesh=size)) for _ in range(5)], w)
            for w in (one, other)
        ]
        assert {verdict.status for run in runs for verdict in run.result()} == {Status.PASS}


def test_a_world_that_loses_a_rank_goes_on_with_the_spare_on_its_devices() -> None:
    config = WorldConfig(size=1, device="cuda", devices=(LAST,))
    with Spares() as spares, World(config, spares) as world:
        world.start()
        spare = [p.pid for p in spares._coming[config].result().processes]
        os.kill(world.pids[0], signal.SIGKILL)
        assert judge(world, make_case(mesh=1)).status is Status.PASS
        assert world.pids == spare
