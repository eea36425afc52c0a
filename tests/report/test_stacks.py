from __future__ import annotations

from fuzzshard.report.show import distinct_stacks

WAITS = """\
Thread 0x00007f93f25656c0 (most recent call first):
  File "fuzzshard/world/messages.py", line 152 in _read
  File "threading.py", line 982 in run
"""
STANDS = """
Current thread 0x00007f94173f0b80 (most recent call first):
  File "torch/distributed/distributed_c10d.py", line 3252 in all_reduce
"""
RAISED = 'Traceback:\n  File "a.py", line 1, in f\n    g(x)\n    ^^^^\nRuntimeError: on cuda:{}'


def test_a_stack_that_ranks_share_is_told_once_whatever_their_addresses_and_devices() -> None:
    stacks = {f"rank {rank}": RAISED.format(rank) for rank in range(3)}
    ((whose, text),) = distinct_stacks(stacks)
    assert whose == "ranks 0-2"
    assert text == RAISED.format(0).replace("    ^^^^\n", "")


def test_ranks_that_stand_elsewhere_keep_their_own_stack() -> None:
    other = STANDS.replace("all_reduce", "barrier")
    stacks = {"rank 0": STANDS, "rank 1": other, "rank 2": STANDS.replace("b80", "c91")}
    assert [whose for whose, _ in distinct_stacks(stacks)] == ["ranks 0, 2", "rank 1"]


def test_the_thread_that_waits_for_the_coordinator_is_left_out() -> None:
    assert distinct_stacks({"rank 1": WAITS + STANDS}) == [("rank 1", STANDS.strip("\n"))]
    assert distinct_stacks({"rank 1": WAITS}) == [("rank 1", WAITS.strip("\n"))]


def test_what_says_nothing_is_no_mistake() -> None:
    assert distinct_stacks({"the collectives of rank 1": ""}) == [
        ("the collectives of rank 1", "")
    ]


def test_collectives_are_apart_from_stacks() -> None:
    stacks = {"rank 0": "x", "the collectives of rank 0": "x", "the collectives of rank 1": "x"}
    assert [whose for whose, _ in distinct_stacks(stacks)] == [
        "rank 0",
        "the collectives of ranks 0-1",
    ]
