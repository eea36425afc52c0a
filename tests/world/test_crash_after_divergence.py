"""A crash does not hide what was wrong before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cases import make_case

from fuzzshard.case.case import Case
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

WRONG_THEN_RAISES = """
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

def apply():
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        if getattr(self, "finalized", False) and dist.get_rank() == 0:
            raise RuntimeError("in the second backward")
        self.finalized = True
        for param in self.fsdp_params:
            param.sharded_param.grad._local_tensor.mul_(2)

    FSDPParamGroup.finalize_backward = wrong
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    preload = tmp_path_factory.mktemp("fault") / "wrong_then_raises.py"
    preload.write_text(WRONG_THEN_RAISES)
    with World(WorldConfig(size=2, preload=(str(preload),))) as world:
        yield world


CASES = {
    "the engine that raises": make_case(engines=("fully_shard",)),
    "and another engine besides": make_case(engines=("ddp", "fully_shard")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_wrong_gradient_in_the_first_step_is_the_finding_before_a_crash_in_the_second(
    world: World, case: Case
) -> None:
    verdict = world.run(case)
    assert (verdict.status, verdict.signature) == (
        Status.DIVERGENCE,
        "divergence/fully_shard/gradient",
    )
    assert verdict.findings[0].op == 1
    crash = next(f for f in verdict.findings if f.oracle == "exception")
    assert crash.observed == "RuntimeError: in the second backward"
    assert crash.op > 1
