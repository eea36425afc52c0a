"""Campaigns as processes, with real ranks, when ranks, files and people misbehave."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

import psutil
import pytest
from command_line import ran
from msgspec.structs import replace
from planting import fault_file
from running import campaign

from fuzzshard.campaign.judge import confirm
from fuzzshard.case.case import Mesh
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.corpus.store import entry_files
from fuzzshard.doctor import clean_case
from fuzzshard.temporary import PREFIX, TemporaryFolder
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.processes import ForkServer

WRONG_GRADIENT = fault_file("wrong_gradient")
LIMITS = ("--max-cases", 8, "--max-findings", 1, "--mends", "off")

BLOCKS_TWICE = """
import os, pathlib, threading
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

HERE = pathlib.Path(__file__).parent

def apply():
    pre_forward = FSDPParamGroup.pre_forward

    def blocking(self, module, args, kwargs):
        before = len(list(HERE.glob("blocked-*")))
        if dist.get_rank() == 1 and before < 2:
            (HERE / f"blocked-{before}").touch()
            (HERE / "pids").write_text(str(os.getpid()))
            threading.Event().wait()
        return pre_forward(self, module, args, kwargs)

    FSDPParamGroup.pre_forward = blocking
"""


@pytest.mark.slow
def test_a_rank_killed_in_mid_case_costs_that_case_only(tmp_path: Path) -> None:
    preload = tmp_path / "blocks_twice.py"
    preload.write_text(BLOCKS_TWICE)
    pids = tmp_path / "pids"
    os.mkfifo(pids)  # reading it waits for a rank that blocks
    with campaign(tmp_path / "corpus", "--max-cases", 6, "--preload", preload) as running:
        for _ in range(2):  # a case that ends as INFRA is tried once more on fresh ranks
            os.kill(int(pids.read_text()), signal.SIGKILL)
        finished = running.finish()
    (trouble,) = running.all("infra_trouble")
    assert "rank 1 was killed by SIGKILL" in trouble["message"]
    assert finished["counts"]["INFRA"] == 1
    assert finished["cases"] == 6
    assert finished["exit_code"] == 0
    assert finished["findings"] == []


def in_shared_memory() -> set[Path]:
    return {path for path in Path("/dev/shm").glob("*") if path.stat().st_uid == os.geteuid()}


def test_a_campaign_that_is_killed_leaves_no_process_and_whole_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its temporary folders are removed by whoever runs ranks next."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = in_shared_memory()
    with campaign(tmp_path / "corpus", "--preload", WRONG_GRADIENT) as running:
        running.read_until("finding_found")
        processes = running.descendants()
        running.process.kill()
        running.process.wait(10)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    (file,) = entry_files([tmp_path / "corpus"])
    assert read_entry(file).signature == "divergence/fully_shard/gradient"
    assert not in_shared_memory() - before
    left = set(tmp_path.glob(f"{PREFIX}*"))
    assert left
    with TemporaryFolder() as live:
        ForkServer().close()
        assert live.is_dir()
        assert left.isdisjoint(tmp_path.iterdir())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of a campaign under a planted fault."""
    corpus = tmp_path_factory.mktemp("corpus")
    with campaign(corpus, *LIMITS, "--preload", WRONG_GRADIENT) as running:
        finished = running.finish()
    assert finished["exit_code"] == 1
    (saved,) = running.all("finding_saved")
    assert saved["signature"] == "divergence/fully_shard/gradient"
    assert saved["reproduced"] == saved["runs"] == 3
    assert saved["script_fails"] is True
    return corpus


@pytest.mark.slow
def test_an_interrupted_finding_is_kept_leaves_no_process_and_comes_to_the_same_entry(
    tmp_path: Path, corpus: Path
) -> None:
    with campaign(tmp_path, *LIMITS, "--preload", WRONG_GRADIENT) as running:
        running.read_until("verifying")
        processes = running.descendants()
        running.process.send_signal(signal.SIGINT)
        finished = running.finish()
        assert running.errors() == ""
    assert (finished["exit_code"], finished["reason"]) == (130, "interrupted")
    assert processes
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    (file,) = entry_files([tmp_path])
    assert {p.name for p in file.parent.iterdir()} == {"case.json", "repro.py", "unshrunk.json"}
    assert finished["unresolved"] == [str(file.parent)]
    with campaign(tmp_path, *LIMITS, "--preload", WRONG_GRADIENT) as running:
        assert running.finish()["exit_code"] == 1
    (whole,) = entry_files([corpus])
    goes_on, at_once = read_entry(file), read_entry(whole)
    assert replace(goes_on, replay="") == replace(at_once, replay="")
    assert file.with_name("repro.py").read_text() == whole.with_name("repro.py").read_text()


def replayed(corpus: Path, *arguments: object) -> tuple[int, str]:
    result = ran("replay", corpus, "--device", "cpu", "--json", *arguments)
    return result.code, json.loads(result.out)["outcome"]


@pytest.mark.slow
def test_a_campaign_saves_a_minimal_case_of_a_planted_fault(corpus: Path) -> None:
    (file,) = entry_files([corpus])
    entry = read_entry(file)
    assert entry.case.engines == ("fully_shard",)
    assert entry.case.mesh == Mesh(shard=2)
    assert len(entry.case.model.children) == 1
    assert {"without backward", "without fully_shard(model)"} <= {c.change for c in entry.culprits}
    assert {c.outcome for c in entry.culprits} == {"PASS"}


@pytest.mark.slow
def test_a_saved_finding_is_the_same_under_its_fault_and_fixed_without(corpus: Path) -> None:
    assert replayed(corpus, "--preload", WRONG_GRADIENT) == (1, "SAME")
    assert replayed(corpus) == (0, "FIXED")


FLAKY = """
import pathlib
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
import torch.distributed as dist

STARTS = pathlib.Path(__file__).with_suffix(".starts")

def apply():
    if dist.get_rank() == 0:
        with STARTS.open("a") as file:
            file.write("x")
    dist.barrier()
    if len(STARTS.read_text()) % 2:
        return
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        for param in self.fsdp_params:
            param.sharded_param.grad._local_tensor.mul_(2)

    FSDPParamGroup.finalize_backward = wrong
"""


@pytest.mark.slow
def test_a_finding_of_every_second_world_is_flaky_with_its_rate(tmp_path: Path) -> None:
    preload = tmp_path / "flaky.py"
    preload.write_text(FLAKY)
    with World(WorldConfig(size=2, preload=(str(preload),))) as world:
        assert world.run(clean_case(2)).status is Status.PASS
        world.restart()
        verdict = world.run(clean_case(2))
        assert verdict.status is Status.DIVERGENCE
        seen = confirm(world, clean_case(2), verdict, runs=2)
    assert seen == Confirmation(runs=10, reproduced=5, others={"PASS": 5})
