"""A compiled case finds nothing of the mends that were on before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzshard.corpus.codec import read_entry
from fuzzshard.world import World, WorldConfig

pytestmark = pytest.mark.slow

ENTRY = (
    Path(__file__).parents[2]
    / "corpus/findings/crash-fully_shard-RuntimeError-in-run-0aa04f81/case.json"
)


def test_a_compiled_case_is_traced_anew_where_mends_come_and_go() -> None:
    case = read_entry(ENTRY).case
    with World(WorldConfig(size=2)) as world:
        found = [
            world.run(case, mends=mends).status
            for mends in ((), ("traced_dropout_gradient_strides",), ())
        ]
    assert found == ["CRASH", "PASS", "CRASH"]
