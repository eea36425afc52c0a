"""Memory that grows with every run of an engine is found, and what stays after the first one is
not.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from cases import make_case
from planting import fault_file

from fuzzshard.oracles.after_run import memory_findings
from fuzzshard.training import memory
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

pytestmark = pytest.mark.slow

LEAK, GROWTH = map(fault_file, ("keeps_unsharded_copies", "group_keeps_what_it_gathers"))
CASE = make_case(observe="memory")


@pytest.mark.parametrize(
    ("preload", "signature"),
    [
        ((), ""),
        ((LEAK,), "divergence/fully_shard/leak/device_memory"),
        ((GROWTH,), "divergence/fully_shard/leak/growth"),
    ],
)
def test_copies_that_are_kept_are_a_leak_of_their_engine(
    preload: tuple[Path, ...], signature: str
) -> None:
    with World(WorldConfig(size=2, preload=tuple(map(str, preload)))) as world:
        verdict = world.run(CASE)
    assert verdict.signature == signature, verdict.findings[:2]
    assert verdict.status is (Status.DIVERGENCE if signature else Status.PASS)


@pytest.mark.parametrize(
    ("after", "leaks"),
    [
        ((100, 120, 140, 160), True),
        ((100, 120, 140, 140), False),
        ((100, 120, 160, 180), False),
        ((160, 140, 120, 100), False),
        ((64, 64, 64, 64), False),
        ((), False),
    ],
)
def test_only_equal_growth_with_every_run_is_a_leak(after: tuple[int, ...], leaks: bool) -> None:
    findings = memory_findings(CASE, "fully_shard", after, 0)
    assert [(f.oracle, f.detail) for f in findings] == [("leak", "device_memory")] * leaks


def test_growth_is_what_every_repetition_adds() -> None:
    counts = [Counter(a=n, b=7, c=n // 2, d=9 - n) for n in range(4)]
    assert memory.growth(counts) == Counter(a=1)


def test_objects_of_before_are_not_counted() -> None:
    with memory.counting() as count:
        before = count()
        kept = [torch.ones(1), torch.ones(1)]
        assert (count() - before)["Tensor"] == len(kept)


def test_tensors_on_the_host_are_counted_once_for_all_views() -> None:
    device = torch.device("cpu")
    before = memory.allocated_bytes(device)
    kept = torch.ones(7)
    views = kept[2:], kept.view(7, 1)
    assert memory.allocated_bytes(device) - before == 4 * 7
    del kept, views
    assert memory.allocated_bytes(device) == before


def test_every_run_is_followed_by_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    monkeypatch.setattr(memory, "allocated_bytes", lambda device: sum(map(len, kept)))
    after = memory.bytes_after_runs(lambda: kept.append(b"four"), torch.device("cuda"))
    assert after == (4, 8, 12, 16)
