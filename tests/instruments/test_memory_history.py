"""What the allocator's history says takes the place of marks in the log."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzshard.instruments.streams.cuda import Mark, placed
from fuzzshard.instruments.streams.events import Allocate, Free, Launch, Synchronize, Touch

KERNEL, LATER = Launch(0, "kernel"), Launch(0, "later")


def entry(action: str, begin: int = 512, mark: str = "", **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "addr": begin,
        "size": 1024,
        "stream": 3,
        "user_metadata": mark,
        **more,
    }


def test_blocks_come_before_the_next_mark_of_their_thread() -> None:
    log = [Mark("1"), KERNEL, Mark("2", thread=7), LATER, Mark("3"), KERNEL]
    assert placed(log, [entry("alloc", mark="1")]) == [
        KERNEL,
        LATER,
        Allocate(512, 1024, 3),
        KERNEL,
    ]


def test_what_other_threads_do_comes_before_what_follows_it() -> None:
    history = [entry("alloc"), entry("alloc", begin=2048, mark="1")]
    allocations = [Allocate(512, 1024, 3), Allocate(2048, 1024, 3)]
    assert placed([Mark("1"), KERNEL, Mark("2"), LATER], history) == [
        KERNEL,
        *allocations,
        LATER,
    ]
    assert placed([Mark("1"), KERNEL], [entry("alloc", mark="99")])[1:] == allocations[:1]


def test_a_history_in_another_order_is_none() -> None:
    with pytest.raises(LookupError):
        placed(
            [Mark("1"), KERNEL, Mark("2")], [entry("alloc", mark="2"), entry("alloc", mark="1")]
        )


def freed(completed: str, then: str) -> Free:
    history = [
        entry("alloc", mark="1"),
        entry("free_requested", mark="2"),
        entry("free_completed", mark=completed),
        entry("alloc", mark=then),
    ]
    (_, free, _) = placed([Mark("1"), Mark("2"), Mark("3")], history)
    return free


def test_a_block_that_is_completed_later_is_held() -> None:
    assert freed(completed="3", then="3").held


def test_a_block_that_is_completed_at_once_is_not() -> None:
    assert not freed(completed="2", then="3").held


def test_a_block_of_which_nobody_can_tell_is_held() -> None:
    """The allocation that follows has the same mark, and may have completed it."""
    assert freed(completed="2", then="2").held


def test_a_block_that_is_never_completed_is_held() -> None:
    (_, free) = placed([], [entry("alloc"), entry("free_requested", mark="2")])
    assert free.held


def test_what_an_operator_allocates_for_itself_it_writes_to() -> None:
    used = [
        entry("alloc", mark="1"),
        entry("free_requested", mark="1"),
        entry("free_completed", mark="1"),
        entry("alloc", mark="1"),
    ]
    _, written, freed, _ = placed([Mark("1", operator="mm", where="line")], used)
    assert written == Launch(3, "mm", (), (Touch(512, 1536, tensor="workspace"),), "line")
    assert freed == Free(512, size=1024)  # and is not held
    assert Launch not in map(type, placed([Mark("1")], used))


def test_memory_that_went_back_to_the_driver_has_been_waited_for() -> None:
    freed, unmapped = entry("segment_free"), entry("segment_unmap")
    assert placed([KERNEL], [freed, unmapped, entry("segment_alloc"), entry("alloc")]) == [
        KERNEL,
        Synchronize(),
        Synchronize(stream=3),
        Allocate(512, 1024, 3),
    ]


def test_what_the_allocator_does_for_itself_is_left_out() -> None:
    assert placed([], [entry("alloc", begin=0, internal_metadata="mallocWithAddress")]) == []
