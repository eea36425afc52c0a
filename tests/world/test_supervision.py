"""What becomes of ranks that hang, are stopped, die or suffer from the machine, and of the case
they run.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cases import make_case
from planting import fault_file

from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.deadline import IDLE_SECONDS, Deadline

SUFFERS = """
import ctypes, errno, os, signal, threading
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

def apply():
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        if dist.get_rank() == 1:
            {what}
        return pre_forward(self, module, args, kwargs)

    FSDPParamGroup.pre_forward = wrong
"""


SPINS_ONCE = """
            import time
            until = globals().setdefault("until", time.monotonic() + 1.5)
            while time.monotonic() < until:
                pass"""


@pytest.fixture
def suffers(tmp_path: Path) -> Callable[[str], World]:
    """A world whose rank 1 does something before the forward of a module under ``fully_shard``."""

    def make(what: str) -> World:
        preload = tmp_path / "suffers.py"
        preload.write_text(SUFFERS.format(what=what))
        return World(WorldConfig(size=2, preload=(str(preload),)))

    return make


def judged(world: World) -> Verdict:
    """What a case shows; the next one, without the engine that suffers, passes on the same
    world.
    """
    with world:
        verdict = world.run(make_case(engines=("fully_shard",)))
        assert world.run(make_case(engines=("ddp",))).status is Status.PASS
    return verdict


CRASHES = {
    "os.kill(os.getpid(), signal.SIGSEGV)": ("death/fully_shard/SIGSEGV", "rank 1 died: SIGSEGV"),
    "os.kill(os.getpid(), signal.SIGBUS)": ("death/fully_shard/SIGBUS", "rank 1 died: SIGBUS"),
    "raise torch.AcceleratorError('CUDA error: device-side assert triggered')": (
        "death/fully_shard/device-side assert triggered",
        "CUDA error: device-side assert triggered",
    ),
    "raise RuntimeError('CUDA error: an illegal memory access was encountered\\nCompile with')": (
        "death/fully_shard/an illegal memory access was encountered",
        "an illegal memory access was encountered",
    ),
    "os.write(2, b'what():  CUDA error: misaligned address\\n'); os.abort()": (
        "death/fully_shard/misaligned address",
        "rank 1 died: SIGABRT, CUDA error: misaligned address",
    ),
    "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 PiB. GPU 0 has a "
    "total capacity of 139.72 GiB of which 90.00 GiB is free.')": (
        "crash/fully_shard/OutOfMemoryError in _pre_forward",
        "Tried to allocate 2.00 PiB",
    ),
}


@pytest.mark.parametrize(("what", "signature", "observed"), [(k, *v) for k, v in CRASHES.items()])
def test_what_a_program_does_to_itself_accuses_the_engine(
    suffers: Callable[[str], World], what: str, signature: str, observed: str
) -> None:
    verdict = judged(suffers(what))
    assert (verdict.status, verdict.signature) == (Status.CRASH, signature)
    assert observed in verdict.findings[0].observed


TROUBLES = {
    "os.kill(os.getpid(), signal.SIGKILL)": "rank 1 was killed by SIGKILL: by a person or another "
    "program",
    "os.kill(os.getpid(), signal.SIGHUP)": "rank 1 was killed by SIGHUP: by a person or another "
    "program",
    "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a "
    "total capacity of 139.72 GiB of which 9.00 MiB is "
    "free.')": "CUDA out of memory. Tried to allocate 20.00 MiB",
    "raise RuntimeError('CUDA error: uncorrectable ECC error encountered')": "uncorrectable ECC "
    "error",
    "raise RuntimeError('writing failed') from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))": (
        "rank 1 lacks what it needs of the machine: OSError: [Errno 28] No space left on device"
    ),
    "os.write(2, b'std::bad_alloc\\n'); os.abort()": "rank 1 died: std::bad_alloc",
}


@pytest.mark.parametrize(("what", "message"), TROUBLES.items())
def test_what_the_machine_does_to_a_program_accuses_nobody(
    suffers: Callable[[str], World], what: str, message: str
) -> None:
    verdict = judged(suffers(what))
    assert (verdict.status, verdict.findings) == (Status.INFRA, ())
    assert message in verdict.message


STOPS_IN_MID_REPORT = """
import os, signal, struct
import torch.distributed as dist
from fuzzshard.world import rank
from fuzzshard.world.messages import RankReport

def apply():
    send = rank.send

    def part(channel, message):
        if dist.get_rank() == 1 and isinstance(message, RankReport):
            channel.sendall(struct.pack("!I", 1 << 24) + b"{" * 1000)
            os.kill(os.getpid(), signal.SIGSTOP)
        send(channel, message)

    rank.send = part
"""


def test_a_rank_that_stops_in_the_middle_of_a_report_holds_its_world_no_longer_than_any(
    tmp_path: Path,
) -> None:
    preload = tmp_path / "stops.py"
    preload.write_text(STOPS_IN_MID_REPORT)
    with World(WorldConfig(size=2, preload=(str(preload),))) as world:
        world.start()
        too_late = threading.Timer(60.0, os.kill, (world.pids[1], signal.SIGKILL))
        too_late.start()
        verdict = world.run(make_case(engines=("ddp",)), deadline=1.5)
        too_late.cancel()
    assert verdict.status is Status.INFRA
    assert "rank 1 is stopped by a signal" in verdict.message


def test_a_rank_that_the_kernel_kills_for_want_of_memory_says_so(
    suffers: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr("fuzzshard.world.supervise.oom_kills", lambda: next(counts, 4))
    verdict = judged(suffers("os.kill(os.getpid(), signal.SIGKILL)"))
    assert verdict.message == "rank 1 was killed by SIGKILL: by the kernel, for want of memory"


def test_an_error_of_a_kernel_costs_the_rank_even_where_an_error_is_refused_with_its_words(
    suffers: Callable[[str], World],
) -> None:
    """After a sticky error every later call on the device fails, so no refusal may keep the
    process.
    """
    with suffers(
        "raise RuntimeError('CUDA error: device-side assert triggered; requires a single root "
        "module')"
    ) as world:
        world.start()
        before = world.pids
        assert world.run(make_case(engines=("fully_shard",))).status is Status.CRASH
        world.start()
        assert not set(before) & set(world.pids)
    assert not any(psutil.pid_exists(pid) for pid in before)


def test_a_hang_is_told_right_at_its_deadline_and_its_desync_is_named() -> None:
    deadline = 4.0
    with World(WorldConfig(size=2, preload=(str(fault_file("sleeps_on_one_rank")),))) as world:
        world.run(make_case(engines=("ddp",)))
        verdict = world.run(make_case(engines=("fully_shard",)), deadline=deadline)
    assert (verdict.status, verdict.signature) == (Status.HANG, "desync/fully_shard")
    assert deadline <= verdict.seconds <= deadline + 1.0
    observed = verdict.findings[0].observed
    assert "rank 0 waits in all_gather" in observed
    assert "of ranks 0-1 (shard) in op 0 (forward)" in observed
    assert observed.endswith("rank 1 has not joined it and is in no collective in op 0 (forward)")
    assert {e["profiling_name"] for e in json.loads(verdict.recordings["rank1"])["entries"]} > {
        "gloo:all_gather"
    }
    assert (
        verdict.stacks["the collectives of rank 0"].splitlines()[-1].startswith("open  all_gather")
    )
    assert verdict.stacks["the collectives of rank 1"].splitlines()[-1].startswith("done  ")


def test_ranks_that_wait_for_each_other_in_two_collectives_are_named(
    suffers: Callable[[str], World],
) -> None:
    with suffers("dist.all_reduce(torch.ones(3))") as world:
        verdict = world.run(make_case(engines=("fully_shard",)), deadline=2.0)
    assert (verdict.status, verdict.signature) == (Status.HANG, "desync/fully_shard")
    assert "rank 0 waits in all_gather" in verdict.findings[0].observed
    assert "rank 1 has joined all_reduce in its place" in verdict.findings[0].observed


def test_a_busy_rank_is_not_taken_for_a_hung_one(suffers: Callable[[str], World]) -> None:
    with suffers(SPINS_ONCE) as world:
        verdict = world.run(make_case(engines=("fully_shard",)), deadline=0.1)
    assert verdict.status is Status.PASS
    assert verdict.seconds > 1.5 * IDLE_SECONDS


def test_ranks_at_work_have_longer_than_a_deadline_that_a_user_has_set(
    suffers: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzshard.world.world.HARD_SECONDS", 0.0)
    monkeypatch.setattr(Deadline, "seconds", lambda self, fresh, compiles: 0.1)
    case = make_case(engines=("fully_shard",))
    with suffers(SPINS_ONCE) as world:
        assert world.run(case, deadline=0.1).status is not Status.PASS
        assert world.run(case).status is Status.PASS


def test_a_stopped_rank_is_told_from_a_hang(suffers: Callable[[str], World]) -> None:
    with suffers("os.kill(os.getpid(), signal.SIGSTOP)") as world:
        world.start()
        stopped = world.pids
        verdict = world.run(make_case(engines=("fully_shard",)), deadline=2.0)
        assert (verdict.status, verdict.findings) == (Status.INFRA, ())
        assert verdict.message == "rank 1 is stopped by a signal: by a person, or by a debugger"
        assert verdict.seconds < 3.0 + IDLE_SECONDS
        assert world.run(make_case(engines=("ddp",))).status is Status.PASS
    assert not any(psutil.pid_exists(pid) for pid in stopped)


def test_a_rank_whose_child_holds_its_channel_is_dead_all_the_same(
    suffers: Callable[[str], World],
) -> None:
    """A process that was forked has the channel too, so the coordinator does not see it close."""
    dies = "(os.kill(os.getpid(), signal.SIGSEGV) if os.fork() else threading.Event().wait())"
    with suffers(dies) as world:
        verdict = world.run(make_case(engines=("fully_shard",)), deadline=2.0)
    assert (verdict.status, verdict.signature) == (Status.CRASH, "death/fully_shard/SIGSEGV")
