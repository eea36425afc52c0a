"""Ranks that are ready before a world loses its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from cases import make_case

from fuzzshard.campaign.judge import confirm
from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tools import Tools
from fuzzshard.errors import InfraError
from fuzzshard.verdict import Status
from fuzzshard.world import Spares, World, WorldConfig
from fuzzshard.world.processes import fork_server

TWO = WorldConfig(size=2)


def waiting(spares: Spares) -> list[int]:
    """The processes of the ranks that wait to be taken, once they have joined."""
    return [p.pid for coming in spares._coming.values() for p in coming.result().processes]


def ranks_alive() -> int:
    """How many ranks this process has, in any world."""
    zygote = fork_server()._process
    return 0 if zygote is None else len(psutil.Process(zygote.pid).children())


def test_a_world_that_loses_a_rank_goes_on_with_the_ranks_that_waited() -> None:
    with Spares() as spares, World(TWO, spares) as world:
        world.start()
        spare = waiting(spares)
        os.kill(world.pids[1], signal.SIGKILL)
        assert world.run(make_case()).status is Status.INFRA
        assert world.run(make_case()).status is Status.PASS
        assert world.pids == spare


def test_each_confirming_run_is_the_first_of_its_ranks() -> None:
    seen = []

    class Watched(World):
        def run(self, *args, **kwargs):
            seen.append(tuple(self.pids))
            return super().run(*args, **kwargs)

    with Spares() as spares, Watched(TWO, spares) as world:
        verdict = world.run(make_case())
        confirm(world, make_case(), verdict, runs=3)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("sent", "status"),
    [(signal.SIGKILL, psutil.STATUS_ZOMBIE), (signal.SIGSTOP, psutil.STATUS_STOPPED)],
    ids=["died", "stopped"],
)
def test_a_spare_rank_that_died_or_stopped_while_it_waited_is_not_handed_out(
    sent: signal.Signals, status: str
) -> None:
    with Spares() as spares, World(TWO, spares) as world:
        world.start()
        spare = waiting(spares)
        os.kill(spare[0], sent)
        while psutil.Process(spare[0]).status() != status:
            pass
        world.restart()
        assert not set(spare) & set(world.pids)
        assert world.run(make_case()).status is Status.PASS


def test_two_worlds_of_a_kind_have_one_spare_set_between_them() -> None:
    before = ranks_alive()
    with Spares() as spares, World(TWO, spares) as one, World(TWO, spares) as other:
        one.start()
        other.start()
        assert len(waiting(spares)) == 2
        assert ranks_alive() == before + 6
    assert ranks_alive() == before


def test_where_ranks_cannot_start_none_are_kept_ready(tmp_path: Path) -> None:
    fault = tmp_path / "fault.py"
    fault.write_text("raise RuntimeError('no room')\n")
    config = WorldConfig(size=1, preload=(str(fault),))
    before = ranks_alive()
    with Spares() as spares:
        with pytest.raises(InfraError, match="no room"):
            spares.take(config)
        spares._coming[config].exception()
        with pytest.raises(InfraError, match="no room"):
            spares.take(config)
        assert not spares._coming
    assert ranks_alive() == before


def test_a_campaign_leaves_no_spare_rank_behind(tmp_path: Path) -> None:
    before = ranks_alive()
    options = CampaignOptions(corpus=tmp_path, max_cases=1, device="cpu", world_size=1, worlds=2)
    run_campaign(options, lambda event: None, tools=Tools(cases=lambda *_, **__: iter([make_case(mesh=1)])))
    assert ranks_alive() == before
