"""A state that is loaded while an all-gather is pending: the next forward has to use it."""

from __future__ import annotations

import pytest
from cases import make_case

from fuzzshard.parts import ops
from fuzzshard.parts.op import Via
from fuzzshard.world import World, WorldConfig

STEP = (ops.Forward(), ops.Backward(), ops.Step(), ops.ZeroGrad())


@pytest.mark.parametrize("via", ["state_dict", "dcp"])
def test_the_next_forward_uses_what_was_loaded(via: Via) -> None:
    pending = (ops.SaveState(via=via), *STEP, ops.Unshard(async_op=True), ops.LoadState())
    case = make_case(schedule=(*pending, *STEP), engines=("fully_shard",))
    with World(WorldConfig(size=2)) as world:
        verdicts = [world.run(case, mends=mends) for mends in ((), ("reshard_is_ignored",))]
    assert [each.signature for each in verdicts] == ["divergence/fully_shard/output", ""]
