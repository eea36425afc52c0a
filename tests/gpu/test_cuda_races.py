"""Races of CUDA streams are found by their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import ROOT, groups, make_case

from fuzzshard.case.case import Case, Mesh, WrapGroup
from fuzzshard.case.options import Precision
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.device import cuda_devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_devices() < 2, reason="this machine has no two CUDA devices"),
]

PLANTED = Path(__file__).parents[2] / "benchmarks" / "faults" / "streams" / "mutants"
ENGINES = ("fully_shard", "ddp", "fsdp1", "replicate")


def watched(**options: object) -> Case:
    given = {"engines": ("fully_shard",), "wrap": groups("a", "b", ROOT), **options}
    return make_case(observe="races", **given)


HYBRID = Mesh(replicate=2, shard=1)
HALF = Precision(param="bfloat16", reduce="float32")


def configured(**options: object) -> tuple[WrapGroup, ...]:
    return tuple(WrapGroup(modules=(name,), **options) for name in ("a", "b", ROOT))


CASES = {
    "plain": watched(),
    "hybrid": watched(mesh=HYBRID),
    "bfloat16": watched(wrap=configured(precision=HALF)),
    "offloaded": watched(wrap=configured(offload="pinned")),
    **{engine: watched(engines=(engine,)) for engine in ENGINES[1:]},
}


@pytest.fixture(scope="module")
def two_devices():
    with World(WorldConfig(size=2, device="cuda")) as world:
        yield world


def test_the_instrument_is_on(two_devices: World) -> None:
    two_devices.start()
    assert "streams" not in two_devices.info.get("instruments off", "")


@pytest.mark.parametrize("name", CASES)
def test_stock_torch_waits_for_everything(two_devices: World, name: str) -> None:
    verdict = two_devices.run(CASES[name])
    assert verdict.status is Status.PASS, verdict.findings


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        ("gather_waits_for_copy_in", "plain"),
        ("copy_out_waits_for_gather", "plain"),
        ("gather_is_not_kept", "plain"),
        ("reduce_waits_for_copy_in", "plain"),
        ("reduce_input_is_not_kept", "plain"),
        ("end_waits_for_reductions", "hybrid"),
    ],
)
def test_a_missing_order_shows(fault: str, case: str) -> None:
    preload = (str(PLANTED / f"{fault}.py"),)
    with World(WorldConfig(size=2, device="cuda", preload=preload)) as world:
        verdict = world.run(CASES[case])
    assert "race" in {finding.oracle for finding in verdict.findings}
