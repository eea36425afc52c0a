"""Ranks that are ready before a world loses its own."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future
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
from fuzzshard.world.spare import MOST_FAILURES
from fuzzshard.world.start import Ranks

TWO = WorldConfig(size=2)

CRASHES_OR_HANGS = """
import os, signal, threading
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.parallel import DistributedDataParallel

def apply():
    on_rank_1(FSDPParamGroup, "pre_forward", lambda: threading.Event().wait())
    on_rank_1(DistributedDataParallel, "forward", lambda: os.kill(os.getpid(), signal.SIGSEGV))

def on_rank_1(where, name, instead):
    stock = getattr(where, name)
    setattr(where, name, lambda *args: instead() if dist.get_rank() == 1 else stock(*args))
"""


def waiting(spares: Spares) -> list[int]:
    """The processes of the ranks that wait to be taken, once they have joined."""
    return [p.pid for coming in spares._coming.values() for p in coming.result().processes]


def ranks_alive() -> int:
    """How many ranks this process has, in any world."""
    zygote = fork_server()._process
    return 0 if zygote is None else len(psutil.Process(zygote.pid).children())


def held(world: World, spares: Spares) -> tuple[int, int, int]:
    """Descriptors, threads and log files of this process, when nothing is coming or going."""
    for ending in world._ending:
        ending.join()
    waiting(spares)
    for thread in threading.enumerate():
        if thread.name == "fuzzshard-spare":  # it has its ranks
            thread.join()
    return (
        psutil.Process().num_fds(),
        threading.active_count(),
        len(os.listdir(fork_server()._logs.path)),
    )


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
        assert not spares._coming
    assert ranks_alive() == before


def test_where_spare_ranks_do_not_start_again_and_again_none_are_kept_ready(
    tmp_path: Path,
) -> None:
    fault, starts = tmp_path / "fault.py", tmp_path / "starts"
    starts.write_text("")
    fault.write_text(
        f"import pathlib\nstarts = pathlib.Path({str(starts)!r})\n"
        "starts.write_text(starts.read_text() + '.')\n"
        "assert len(starts.read_text()) % 2, 'no room'\n"
    )
    config = WorldConfig(size=1, preload=(str(fault),))
    with Spares() as spares, World(config, spares) as world:
        for _ in range(MOST_FAILURES):
            world.restart()
            assert isinstance(spares._coming[config].exception(), InfraError)
        world.restart()
        assert not spares._coming


def test_a_spare_set_starts_when_the_ranks_that_are_waited_for_have_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    started, order = Spares._started, Spares._order

    def and_log(self: Spares, config: WorldConfig) -> Ranks:
        ranks = started(self, config)
        log.append("started")
        return ranks

    def log_order(self: Spares, config: WorldConfig) -> Future[Ranks]:
        log.append("ordered")
        return order(self, config)

    monkeypatch.setattr(Spares, "_started", and_log)
    monkeypatch.setattr(Spares, "_order", log_order)
    with Spares() as spares, World(TWO, spares) as world:
        world.start()
        assert log[:2] == ["started", "ordered"]


def test_a_spare_set_that_does_not_start_now_and_then_is_ordered_again(tmp_path: Path) -> None:
    """In a campaign of weeks; each set that starts makes the count begin anew."""
    fault, trouble = tmp_path / "fault.py", tmp_path / "trouble"
    fault.write_text(f"import pathlib\nassert not pathlib.Path({str(trouble)!r}).exists()\n")
    config = WorldConfig(size=1, preload=(str(fault),))
    with Spares() as spares, World(config, spares) as world:
        world.start()
        for _ in range(MOST_FAILURES):
            assert len(waiting(spares)) == 1
            trouble.touch()
            world.restart()
            assert isinstance(spares._coming[config].exception(), InfraError)
            trouble.unlink()
            world.restart()
        assert len(waiting(spares)) == 1


@pytest.mark.slow
def test_ranks_that_come_and_go_cost_the_coordinator_no_descriptor_and_no_thread(
    tmp_path: Path,
) -> None:
    """By a restart, by a crash, by a hang; whatever it opens for a rank goes with it."""
    fault = tmp_path / "fault.py"
    fault.write_text(CRASHES_OR_HANGS)
    with Spares() as spares, World(WorldConfig(size=2, preload=(str(fault),)), spares) as world:
        counts = []
        for _ in range(3):
            world.restart()
            assert world.run(make_case(engines=("ddp",))).status is Status.CRASH
            assert (
                world.run(make_case(engines=("fully_shard",)), deadline=0.5).status is Status.HANG
            )
            world.restart()
            counts.append(held(world, spares))
    assert counts[0] == counts[1] == counts[2]


def test_a_campaign_leaves_no_spare_rank_behind(tmp_path: Path) -> None:
    before = ranks_alive()
    options = CampaignOptions(corpus=tmp_path, max_cases=1, device="cpu", world_size=1, worlds=2)
    run_campaign(
        options, lambda event: None, tools=Tools(cases=lambda *_, **__: iter([make_case(mesh=1)]))
    )
    assert ranks_alive() == before
