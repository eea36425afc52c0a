"""The coordinator's heap."""

from __future__ import annotations

import psutil

from fuzzshard.campaign.loop import trim_heap

MIB = 1 << 20


def test_what_was_freed_below_something_that_lives_goes_back_to_the_system() -> None:
    blocks = [bytes(1000) for _ in range(50_000)]
    pin = bytes(1000)
    del blocks
    before = psutil.Process().memory_info().rss
    trim_heap()
    assert psutil.Process().memory_info().rss < before - 40 * MIB
    assert len(pin) == 1000
