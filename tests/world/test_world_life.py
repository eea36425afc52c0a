"""How worlds start, live, die and come back."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from pathlib import Path

import psutil
import pytest
from cases import BACKWARD, FORWARD, make_case

from fuzzshard.campaign.judge import judge
from fuzzshard.case.case import Mesh
from fuzzshard.errors import InfraError, InvalidCase
from fuzzshard.mending.mend import mends_for
from fuzzshard.parts.ops import SaveState
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig, processes, start
from fuzzshard.world.deadline import Deadline
from fuzzshard.world.placement import cores_of
from fuzzshard.world.processes import ForkServer, RankProcess, fork_server


def kill(pid: int) -> None:
    """Returns once the process is dead; its parent may not have noticed yet."""
    os.kill(pid, signal.SIGKILL)
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        pass


def test_warm_ranks_run_one_case_after_another(two_ranks: World) -> None:
    two_ranks.run(make_case())
    before = two_ranks.pids
    assert two_ranks.run(make_case()).status is Status.PASS
    assert two_ranks.pids == before


def test_ranks_of_users_models_prove_nothing_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_proved", {})
    for subjects, proved in ((True, []), (False, [("cpu", 1)])):
        with World(WorldConfig(size=1, subjects=subjects)) as world:
            world.start()
        assert [*start._proved] == proved


def test_ranks_beyond_the_mesh_sit_a_case_out(four_ranks: World) -> None:
    verdict = four_ranks.run(make_case(mesh=1))
    assert verdict.status is Status.PASS
    assert len(four_ranks.pids) == 4


def test_all_groups_of_a_rank_share_one_thread_that_polls(four_ranks: World) -> None:
    four_ranks.run(make_case(mesh=2))
    four_ranks.run(make_case(mesh=Mesh(replicate=2, shard=2)))
    for pid in four_ranks.pids:
        names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
        assert names.count("gloo_tcp_loop") <= 1, names  # torch 2.11 does not name it


def test_an_invalid_case_reaches_no_rank(two_ranks: World) -> None:
    two_ranks.start()
    before = two_ranks.pids
    with pytest.raises(InvalidCase):
        two_ranks.run(make_case(schedule=()))
    with pytest.raises(InvalidCase, match="needs 3 ranks and the world has 2"):
        two_ranks.run(make_case(mesh=3))
    assert two_ranks.pids == before


def test_a_bare_run_trains_and_judges_nothing(two_ranks: World) -> None:
    verdict = two_ranks.run(make_case(), bare=True)
    assert verdict.status is Status.PASS
    assert verdict.comparison == ""


def test_a_world_says_what_it_runs_on(two_ranks: World) -> None:
    two_ranks.start()
    assert set(two_ranks.info) == {"torch", "python", "device", "backend", "platform"}
    assert two_ranks.info["backend"] == "gloo"


def test_a_rank_keeps_to_the_cores_that_it_was_given(two_ranks: World) -> None:
    two_ranks.start()
    cores = os.sched_getaffinity(0)
    for rank, pid in enumerate(two_ranks.pids):
        assert os.sched_getaffinity(pid) == cores_of(rank, 2, cores)


def test_a_restart_brings_other_processes() -> None:
    with World(WorldConfig(size=2)) as world:
        world.start()
        before = world.pids
        world.restart()
        assert len(world.pids) == 2
        assert not set(world.pids) & set(before)


def test_ranks_that_have_run_many_cases_make_room_for_fresh_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fuzzshard.world.world.RANK_CASES", 2)
    with World(WorldConfig(size=1)) as world:
        served = []
        for _ in range(3):
            assert world.run(make_case(mesh=1, schedule=(FORWARD,))).status is Status.PASS
            served.append(world.pids)
    assert served[0] == served[1] != served[2]


def test_no_rank_outlives_its_world() -> None:
    with World(WorldConfig(size=2)) as world:
        world.start()
        pids = world.pids
    assert not any(psutil.pid_exists(pid) for pid in pids)
    world.close()
    assert world.pids == [], "closing it twice is closing it once"


def test_two_worlds_live_side_by_side(two_ranks: World) -> None:
    with World(WorldConfig(size=3)) as other:
        assert other.run(make_case(mesh=3)).status is Status.PASS
        assert two_ranks.run(make_case()).status is Status.PASS
        assert other.run(make_case(mesh=3)).status is Status.PASS


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_between_cases_is_not_torchs_fault(rank: int) -> None:
    with World(WorldConfig(size=2)) as world:
        world.run(make_case())
        kill(world.pids[rank])
        verdict = world.run(make_case())
        assert verdict.status is Status.INFRA
        assert f"rank {rank} was killed by SIGKILL" in verdict.message
        assert world.run(make_case()).status is Status.PASS


@pytest.mark.slow
def test_worlds_survive_the_death_of_their_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(ForkServer()) as server:
        monkeypatch.setattr(processes, "_server", server)
        with World(WorldConfig(size=2)) as world, World(WorldConfig(size=2)) as other:
            world.run(make_case())
            other.run(make_case())
            (zygote,) = {psutil.Process(pid).ppid() for pid in (*world.pids, *other.pids)}
            kill(zygote)
            assert judge(world, make_case()).status is Status.PASS
            assert judge(other, make_case()).status is Status.PASS


def test_a_world_knows_its_ranks_while_they_start(tmp_path: Path) -> None:
    sleeps = tmp_path / "sleeps.py"
    sleeps.write_text("import time\n\n\ndef apply():\n    time.sleep(1000)\n")
    with World(WorldConfig(size=2, preload=(str(sleeps),))) as world:

        def end() -> None:
            while len(world.pids) < 2:
                pass
            for pid in world.pids:
                with contextlib.suppress(ProcessLookupError):  # ended with the other one
                    os.kill(pid, signal.SIGKILL)

        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(InfraError, match="died while it started"):
            world.start()
        ending.join()
        assert world.pids == []


def test_a_fork_server_that_imports_torch_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(python))
    with contextlib.closing(ForkServer()) as server:

        def stop() -> None:
            while server._process is None:
                pass
            server.stop_importing()

        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(InfraError, match="while importing torch"):
            server.start_rank(0, WorldConfig(size=1))
        stopping.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_go_to_the_whole_process_group_end_neither_ranks_nor_fork_server(
    number: signal.Signals,
) -> None:
    """A terminal, timeout(1) and schedulers send them so; whether ranks end is for the coordinator
    to say.
    """
    with World(WorldConfig(size=2)) as world:
        world.start()
        ranks, zygote = world.pids, fork_server()._process
        assert zygote is not None
        for pid in (*ranks, zygote.pid):
            os.kill(pid, number)
        assert world.run(make_case()).status is Status.PASS
        assert world.pids == ranks
        world.restart()
        assert fork_server()._process is zygote


def test_a_preload_patches_functions_that_fuzzshard_has_imported_by_name(tmp_path: Path) -> None:
    preload = tmp_path / "preload.py"
    preload.write_text(
        "import torch.distributed.checkpoint.state_dict as defined\n"
        "def refuse(*args, **kwargs):\n"
        "    raise RuntimeError('patched')\n"
        "def apply():\n"
        "    defined.get_model_state_dict = refuse\n"
    )
    with World(WorldConfig(size=2, preload=(str(preload),))) as world:
        verdict = world.run(make_case(schedule=(SaveState(via="dcp"), FORWARD, BACKWARD)))
    assert verdict.status is Status.CRASH
    assert "RuntimeError: patched" in verdict.findings[0].observed


SPLITS = """
import torch
import torch.distributed as dist
from torch.distributed import device_mesh

class Bound:  # the default group, bound to a device as NCCL's is
    bound_device_id = torch.device("cpu")
    def __getattr__(self, name):
        return getattr(dist.group.WORLD, name)

class Accelerated:
    accelerator = type("accelerator", (), {"is_available": staticmethod(lambda: True)})
    def __getattr__(self, name):
        return getattr(torch, name)

def apply():
    device_mesh._get_default_group = Bound
    device_mesh.torch = Accelerated()
"""


def test_fresh_ranks_find_in_the_fork_server_what_mends_edit(tmp_path: Path) -> None:
    preload = tmp_path / "cannot_read.py"
    preload.write_text("from fuzzshard.mending import source\n\nsource._parsed = None\n")
    with World(WorldConfig(size=1, preload=(str(preload),))) as world:
        verdict = world.run(make_case(mesh=1), mends=mends_for())
    assert verdict.status is Status.PASS, verdict.message


def test_idle_ranks_are_not_needed_where_a_mesh_splits_the_default_group(tmp_path: Path) -> None:
    preload = tmp_path / "splits.py"
    preload.write_text(SPLITS)
    alone = make_case(schedule=(FORWARD, BACKWARD), mesh=Mesh(shard=1))
    with World(WorldConfig(size=2, preload=(str(preload),))) as world:
        assert world.run(alone).status is Status.PASS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('not today')\n", "preload.py, preloaded, raised ValueError: not today"),
        ("import os; os._exit(3)\n", "died"),
    ],
    ids=["raises", "ends the process"],
)
def test_a_preload_that_breaks_its_rank_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    preload = tmp_path / "preload.py"
    preload.write_text(text)
    with World(WorldConfig(size=2, preload=(str(preload),))) as world:
        with pytest.raises(InfraError, match=said):
            world.start()
        assert world.pids == []


def test_a_rank_that_dies_before_it_hears_of_the_others_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_rank, ranks = ForkServer.start_rank, list[RankProcess]()

    def killed(self: ForkServer, rank: int, config: WorldConfig) -> RankProcess:
        ranks.append(start_rank(self, rank, config))
        if rank == 1:
            kill(ranks[1].pid)
            select.select([ranks[0].channel], [], [])  # rank 0 has said where its store listens
        return ranks[rank]

    monkeypatch.setattr(ForkServer, "start_rank", killed)
    with (
        World(WorldConfig(size=2)) as world,
        pytest.raises(InfraError, match="rank 1 died while it started"),
    ):
        world.start()


@pytest.mark.slow
def test_a_world_may_end_while_another_notices_that_the_fork_server_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endings: list[threading.Thread] = []

    def kill_group(leader: int) -> None:
        if not endings and threading.current_thread() is threading.main_thread():
            endings.append(threading.Thread(target=other.close))
            endings[0].start()
            endings[0].join(0.2)  # it ends its ranks now, or once this is over
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)

    with contextlib.closing(ForkServer()) as server:
        monkeypatch.setattr(processes, "_server", server)
        world, other = World(WorldConfig(size=2)), World(WorldConfig(size=2))
        world.start()
        other.start()
        kill(psutil.Process(world.pids[0]).ppid())
        monkeypatch.setattr(processes, "_kill_group", kill_group)
        with pytest.raises(InfraError, match="the fork server died"):
            server.start_rank(0, WorldConfig(size=1))
        endings[0].join()
        world.close()
        assert server.num_ranks == 0


def test_the_first_case_of_fresh_ranks_has_a_longer_deadline_however_they_came() -> None:
    class Watched(Deadline):
        def seconds(self, fresh: bool, compiles: bool = False) -> float:
            asked.append(fresh)
            return super().seconds(fresh, compiles)

    asked: list[bool] = []
    with World(WorldConfig(size=1)) as world:
        world.deadline = Watched()
        case = make_case(mesh=1, schedule=(FORWARD,))
        world.run(case)
        world.run(case)
        world.restart()  # as for a confirming run
        world.run(case)
        kill(world.pids[0])
        for _ in range(2):
            world.run(case)
    assert asked == [True, False, True, False, True]
