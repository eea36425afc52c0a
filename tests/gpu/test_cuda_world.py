"""The same on CUDA and NCCL, on two devices where there are two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import FORWARD, ROOT, chain, groups, make_case
from hunt import mending_file
from packaging.version import Version
from planting import fault_file
from stock_cases import NEEDS_CUDA, STOCK

from fuzzshard.analysis.needs import needs_cpu
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, walk
from fuzzshard.drafts.evidence import run_example
from fuzzshard.mending.mend import own_mends
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.device import cuda_devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_devices() == 0, reason="this machine has no CUDA device"),
]

RANKS = min(2, cuda_devices())
CASES = {name: stock.case for name, stock in STOCK.items()} | dict(NEEDS_CUDA)
CASES = {
    name: case
    for name, case in CASES.items()
    if case.mesh.size <= RANKS and needs_cpu(case) is None
}
KNOWN = {
    "option: adamw with fused and amsgrad and tensor_lr": ("fused_steps_take_no_double_rate",),
    "option: rprop": ("fused_optimizers_have_no_rule",),
    "option: rprop with other_numbers": ("fused_optimizers_have_no_rule",),
    "sharding: offloaded gradients that a scaler looks through": (
        "scale_is_read_before_it_arrives",
    ),
    "sharding: ignored, and built on the meta device": ("lists_mix_meshes",),
    "wrap: a module in no group": ("lists_mix_meshes",),
}
"""The mends of what stock torch does wrong on CUDA, now and then."""
EXAMPLES_FOR_CUDA = [slug for slug, mend in own_mends().items() if "cuda" in mend.example]


def _passes_dataclass(case: Case) -> bool:
    return any(
        isinstance(m, Block) and "dataclass" in (m.returns, m.passing) for _, m in walk(case.model)
    )


@pytest.fixture(scope="module")
def devices() -> Iterator[World]:
    with World(WorldConfig(size=RANKS, device="cuda")) as world:
        yield world


@pytest.mark.parametrize("name", CASES)
def test_stock_torch_passes_on_cuda(devices: World, name: str) -> None:
    case = CASES[name]
    if _passes_dataclass(case) and Version(devices.info["torch"]) < Version("2.13"):
        pytest.skip("older torch does not see the tensors in a dataclass")
    verdict = devices.run(case, mends=KNOWN.get(name, ()))
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)


@pytest.mark.parametrize("slug", EXAMPLES_FOR_CUDA)
def test_an_example_that_needs_cuda_fails_and_passes_with_its_mend(
    slug: str, tmp_path: Path
) -> None:
    mend = own_mends()[slug]
    if mend.example_ranks > RANKS:
        pytest.skip(f"the example needs {mend.example_ranks} devices")
    assert run_example(mend).shown == 1
    assert run_example(mend, preload=(mending_file(tmp_path, slug),)).shown == 0


def test_ranks_say_which_device_they_have(devices: World) -> None:
    devices.start()
    assert devices.info["backend"] == "cpu:gloo,cuda:nccl"
    assert devices.info["device"].startswith("cuda")


def test_a_planted_divergence_is_found_on_cuda() -> None:
    case = make_case(mesh=RANKS)
    config = WorldConfig(size=RANKS, device="cuda", preload=(str(fault_file("wrong_output")),))
    with World(config) as world:
        verdict = world.run(case)
    assert verdict.signature == "divergence/fully_shard/output"


@pytest.mark.parametrize(
    "leaks",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.xfail(reason="not found with torch 2.11; why is unknown")
        ),
    ],
)
def test_memory_that_every_run_keeps_on_the_device_is_found(*, leaks: bool) -> None:
    case = make_case(mesh=RANKS, observe="memory")
    preload = (str(fault_file("keeps_unsharded_copies")),) if leaks else ()
    with World(WorldConfig(size=RANKS, device="cuda", preload=preload)) as world:
        verdict = world.run(case)
    assert verdict.signature == ("divergence/fully_shard/leak/device_memory" if leaks else ""), (
        verdict.findings
    )


def test_a_crash_on_cuda_costs_one_case() -> None:
    case = make_case(chain(a=Linear(out=4)), (FORWARD,), mesh=RANKS, wrap=groups(ROOT))
    config = WorldConfig(size=RANKS, device="cuda", preload=(str(fault_file("ddp_raises")),))
    with World(config) as world:
        assert world.run(case).signature == "crash/ddp/KeyError in ddp_raises"
        healthy = make_case(mesh=RANKS, engines=("fully_shard",))
        assert world.run(healthy).status is Status.PASS


@pytest.mark.skipif(RANKS < 2, reason="one device waits for nobody")
def test_a_hang_on_nccl_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzzshard.world.world.HARD_SECONDS", 5.0)  # a waiting NCCL rank spins
    case = make_case()
    config = WorldConfig(size=2, device="cuda", preload=(str(fault_file("sleeps_on_one_rank")),))
    with World(config) as world:
        world.run(make_case(engines=("ddp",)))
        verdict = world.run(case)
        assert (verdict.status, verdict.signature) == (Status.HANG, "desync/fully_shard")
        assert "in sleeps_on_one_rank" in verdict.stacks["rank 1"]
