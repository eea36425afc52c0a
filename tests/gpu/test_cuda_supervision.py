"""What becomes of CUDA ranks that hang, and of those that an error of a kernel has made
useless.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import make_case
from planting import fault_file

from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.device import cuda_devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_devices() == 0, reason="this machine has no CUDA device"),
]

RANKS = min(2, cuda_devices())

SUFFERS = """
import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

def apply():
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        {what}
        return pre_forward(self, module, args, kwargs)

    FSDPParamGroup.pre_forward = wrong
"""


@pytest.fixture
def suffers(tmp_path: Path) -> Callable[[str], World]:
    """A world whose ranks do something before the forward of a module under ``fully_shard``."""

    def make(what: str) -> World:
        preload = tmp_path / "suffers.py"
        preload.write_text(SUFFERS.format(what=what))
        return World(WorldConfig(size=RANKS, device="cuda", preload=(str(preload),)))

    return make


@pytest.mark.skipif(RANKS < 2, reason="one device waits for nobody")
def test_a_hang_on_nccl_is_told_right_at_its_deadline_and_its_desync_is_named() -> None:
    deadline = 8.0
    config = WorldConfig(size=2, device="cuda", preload=(str(fault_file("sleeps_on_one_rank")),))
    with World(config) as world:
        world.run(make_case(engines=("ddp",)))
        verdict = world.run(make_case(engines=("fully_shard",)), deadline=deadline)
    assert (verdict.status, verdict.signature) == (Status.HANG, "desync/fully_shard")
    assert deadline <= verdict.seconds <= deadline + 1.0
    observed = verdict.findings[0].observed
    assert "rank 0 waits in all_gather" in observed
    assert "rank 1 has not joined it and is in no collective in op 0 (forward)" in observed
    kinds = {
        entry["profiling_name"].rpartition(":")[2]  # "nccl:..." or, since torch 2.15, "nccl2:..."
        for entry in json.loads(verdict.recordings["rank1"])["entries"]
    }
    assert kinds > {"_all_gather_base"}


@pytest.mark.parametrize(
    ("what", "kernel"),
    [
        (
            "torch.zeros(2, device='cuda')[torch.tensor([5], device='cuda')].sum().item()",
            "device-side assert triggered",
        ),
        (
            "torch.cuda._sleep(1); torch.zeros(2, device='cuda')[torch.tensor([5], "
            "device='cuda')]",
            "",
        ),
    ],
    ids=["at once", "noticed later"],
)
def test_an_error_of_a_kernel_is_a_crash_that_costs_the_ranks(
    suffers: Callable[[str], World], what: str, kernel: str
) -> None:
    with suffers(what) as world:
        world.start()
        before = world.pids
        verdict = world.run(make_case(mesh=RANKS, engines=("fully_shard",)))
        assert verdict.status is Status.CRASH, verdict.message
        assert "device-side assert triggered" in verdict.signature
        assert kernel in verdict.findings[0].observed
        assert world.run(make_case(mesh=RANKS, engines=("ddp",))).status is Status.PASS
        assert not set(before) & set(world.pids)


def test_a_device_without_memory_accuses_nobody(suffers: Callable[[str], World]) -> None:
    scarce = (
        "torch.cuda.set_per_process_memory_fraction(1e-5); torch.empty(1 << 28, device='cuda')"
    )
    with suffers(scarce) as world:
        verdict = world.run(make_case(mesh=RANKS, engines=("fully_shard",)))
    assert (verdict.status, verdict.findings) == (Status.INFRA, ())
    assert "CUDA out of memory" in verdict.message


def test_a_request_for_more_than_the_device_has_accuses_the_engine(
    suffers: Callable[[str], World],
) -> None:
    with suffers("torch.empty(1 << 50, device='cuda')") as world:
        verdict = world.run(make_case(mesh=RANKS, engines=("fully_shard",)))
    assert (verdict.status, verdict.findings[0].engine) == (Status.CRASH, "fully_shard")
    assert "CUDA out of memory" in verdict.findings[0].observed
