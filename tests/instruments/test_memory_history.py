"""The allocator's own history says what its callbacks do not."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzshard.instruments.streams.cuda import placed
from fuzzshard.instruments.streams.events import Allocate, Free, Launch, Synchronize

KERNEL = Launch(0, "kernel")


def entry(action: str, begin: int = 512, mark: str = "", **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "addr": begin,
        "size": 1024,
        "stream": 3,
        "user_metadata": mark,
        **more,
    }


def test_blocks_get_their_sizes_and_streams() -> None:
    assert placed([KERNEL, Allocate(512, 0, 0)], [entry("alloc")]) == [
        KERNEL,
        Allocate(512, 1024, 3),
    ]


def freed(completed: str, then: str) -> Free:
    log = [Allocate(512, 0, 0), Free(512), Allocate(512, 0, 0)]
    history = [
        entry("alloc", mark="1"),
        entry("free_requested", mark="2"),
        entry("free_completed", mark=completed),
        entry("alloc", mark=then),
    ]
    (_, free, _) = placed(log, history)
    return free


def test_a_block_that_is_completed_later_is_held() -> None:
    assert freed(completed="3", then="3").held


def test_a_block_that_is_completed_at_once_is_not() -> None:
    assert not freed(completed="2", then="3").held


def test_a_block_of_which_nobody_can_tell_is_held() -> None:
    """The allocation that follows has the same mark, and may have completed it."""
    assert freed(completed="2", then="2").held


def test_a_block_that_is_never_completed_is_held() -> None:
    (_, free) = placed(
        [Allocate(512, 0, 0), Free(512)], [entry("alloc"), entry("free_requested", mark="2")]
    )
    assert free.held


def test_blocks_of_one_address_are_told_apart_by_their_order() -> None:
    log = [Allocate(512, 0, 0), Free(512), Allocate(512, 0, 0)]
    history = [
        entry("alloc", size=512),
        entry("free_requested"),
        entry("free_completed"),
        entry("alloc", mark="9", size=2048),
    ]
    sizes = [event.size for event in placed(log, history) if isinstance(event, Allocate)]
    assert sizes == [512, 2048]


def test_a_block_older_than_the_trace_brings_its_size() -> None:
    assert placed([Free(512)], [entry("free_requested"), entry("free_completed")]) == [
        Free(512, size=1024)
    ]


def test_memory_that_went_back_to_the_driver_has_been_waited_for() -> None:
    log = [KERNEL, Allocate(512, 0, 0)]
    freed, unmapped = entry("segment_free"), entry("segment_unmap")
    assert placed(log, [freed, unmapped, entry("segment_alloc"), entry("alloc")]) == [
        KERNEL,
        Synchronize(),
        Synchronize(stream=3),
        Allocate(512, 1024, 3),
    ]


def test_what_the_allocator_does_for_itself_is_left_out() -> None:
    own = entry("alloc", begin=0, internal_metadata="mallocWithAddress")
    assert placed([Allocate(512, 0, 0)], [own, entry("alloc")]) == [Allocate(512, 1024, 3)]


def test_what_happens_before_and_after_is_left_out() -> None:
    early, late = entry("alloc", begin=0), entry("alloc", begin=1024, mark="7")
    assert placed([Allocate(512, 0, 0)], [early, entry("alloc"), late]) == [Allocate(512, 1024, 3)]


@pytest.mark.parametrize(
    ("log", "history"),
    [
        ([Allocate(512, 0, 0)], []),
        ([Allocate(512, 0, 0)], [entry("alloc", begin=0, mark="1"), entry("alloc", mark="1")]),
        ([Allocate(512, 0, 0)], [entry("free_requested", mark="1"), entry("alloc", mark="1")]),
    ],
)
def test_a_history_of_other_blocks_is_not_believed(log: list[Any], history: list[Any]) -> None:
    with pytest.raises(LookupError):
        placed(log, history)
