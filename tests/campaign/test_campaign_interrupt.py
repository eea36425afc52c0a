from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest
from fake_campaign import PASS, FakeWorld, campaign, divergence, numbered

from fuzzshard.campaign.control import Control, ControlledWorld, ended_in_time
from fuzzshard.campaign.judge import Stopped
from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tools import Tools
from fuzzshard.case.case import Case
from fuzzshard.doctor import clean_case
from fuzzshard.errors import InfraError
from fuzzshard.events import Event, FindingFound, PhaseChanged
from fuzzshard.reproducer import check
from fuzzshard.verdict import Verdict
from fuzzshard.world import Spares, WorldConfig

SCRIPT = """
import subprocess, sys
from pathlib import Path
from fake_campaign import *
from fuzzshard.campaign import control, reduce
from fuzzshard.campaign.session import Session
from fuzzshard.report.sinks import make_sink

control.GRACE_SECONDS = 0.3
Session.num_followers = 0
reduce.shrink = shrink_seed_and_norm
corpus, hang_at, sys.argv = Path(sys.argv[1]), sys.argv[2], []

class HangingWorld(FakeWorld):
    def run(self, case, *, deadline=None, mends=()):
        verdict = super().run(case, deadline=deadline)
        small = case.seed == 0 and len(self.log) > 5
        if (hang_at == "case" and case.seed == 4) or (hang_at == "shrinking" and small):
            rank = subprocess.Popen(["sleep", "1000"])
            self.pids = [rank.pid]
            print("hanging", file=sys.stderr, flush=True)
            rank.wait()
        return verdict

def verdict_of(case):
    return divergence() if case.seed in (0, 3) and case.inputs.batch == 2 else PASS

tools = Tools(
    make_world=lambda config, spares: HangingWorld(verdict_of, []),
    cases=numbered(lambda i: make_case(i + 1, norm=i == 2)),
    render=lambda case, *, signature, findings, torch_version: [""],
    check=lambda *_, **__: FakeScriptResult(True),
    reduce=lambda entry, script, **_: script,
)
with make_sink(json=True) as sink:
    sys.exit(run_campaign(CampaignOptions(corpus=corpus, device="cpu"), sink, tools=tools))
"""


def interrupted(corpus: Path, hang_at: str, number: signal.Signals) -> tuple[int, list[dict]]:
    """Starts a campaign that hangs where asked, interrupts it there; its exit code and its
    events.
    """
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(corpus), hang_at],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line == "hanging\n", line + process.stderr.read()
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    return process.returncode, [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_hanging_campaign_promptly_with_its_finding_and_its_summary(
    tmp_path, number
):
    code, events = interrupted(tmp_path, "case", number)
    assert code == 130
    assert events[0]["event"] == "campaign_started"
    assert events[-1]["event"] == "campaign_finished"
    assert events[-1]["reason"] == "interrupted"
    assert events[-1]["elapsed"] < 20
    assert len(events[-1]["findings"]) == 1
    assert len(list(tmp_path.glob("findings/*/case.json"))) == 1


def test_an_interrupt_while_shrinking_hangs_keeps_the_smallest_case_so_far(tmp_path):
    code, _ = interrupted(tmp_path, "shrinking", signal.SIGINT)
    assert code == 130
    (entry,) = tmp_path.glob("findings/*/case.json")
    (unshrunk,) = tmp_path.glob("findings/*/unshrunk.json")
    assert len(json.loads(entry.read_text())["case"]["model"]["children"]) == 1
    assert len(json.loads(unshrunk.read_text())["model"]["children"]) == 2


def interrupt_once(
    ready: Callable[[], bool], at: Callable[[Event], bool]
) -> Callable[[Event], None]:
    """A sink that waits at an event for what happens next, and does what Ctrl-C does."""
    done: list[Event] = []

    def sink(event: Event) -> None:
        if at(event) and not done:
            done.append(event)
            while not ready():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

    return sink


def test_ranks_that_run_when_the_time_of_a_command_is_up_are_killed(monkeypatch):
    for name in ("OVERTIME_SECONDS", "GRACE_SECONDS", "SECONDS_BETWEEN_LOOKS"):
        monkeypatch.setattr(f"fuzzshard.campaign.control.{name}", 0.05)
    control = Control(0.1)
    with subprocess.Popen(["sleep", "1000"]) as rank:
        with ended_in_time(control, lambda: [rank.pid]):
            assert rank.wait() == -signal.SIGKILL
        assert control.abandoned


def test_a_script_that_hangs_ends_with_its_campaign(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzzshard.campaign.control.GRACE_SECONDS", 0.3)
    python, pid = tmp_path / "python", tmp_path / "pid"
    python.write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000\n")
    python.chmod(0o700)

    def verifying(event: Event) -> bool:
        return isinstance(event, PhaseChanged) and event.phase == "verifying"

    ran = campaign(
        tmp_path,
        lambda case: divergence() if case.seed == 0 else PASS,
        check=functools.partial(check, python=python),
        sink=interrupt_once(pid.exists, verifying),
    )
    assert ran.code == 130
    assert not psutil.pid_exists(int(pid.read_text()))
    (entry,) = tmp_path.glob("findings/*/case.json")
    assert "confirmed" in json.loads(entry.read_text())
    assert json.loads(entry.read_text())["notes"] == {"repro.py": "nobody has run it yet"}
    assert ran.finished.unresolved == (str(entry.parent),)


def test_cpu_ranks_of_a_cuda_campaign_end_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzzshard.campaign.control.GRACE_SECONDS", 0.3)
    monkeypatch.setattr("fuzzshard.world.device.cuda_devices", lambda: 2)
    ranks: list[subprocess.Popen[bytes]] = []

    class Hanging(FakeWorld):
        def run(
            self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
        ) -> Verdict:
            rank = subprocess.Popen(["sleep", "1000"])
            self.pids = [rank.pid]
            ranks.append(rank)
            rank.wait()
            return super().run(case, deadline=deadline)

    def world(config: WorldConfig, spares: Spares) -> FakeWorld:
        return (Hanging if config.device == "cpu" else FakeWorld)(lambda case: divergence(), [])

    options = CampaignOptions(corpus=tmp_path, device="cuda", world_size=2, max_cases=1)
    tools = Tools(make_world=world, cases=numbered(), render=lambda *_, **__: [""])
    sink = interrupt_once(lambda: bool(ranks), lambda event: isinstance(event, FindingFound))
    assert run_campaign(options, sink, tools=tools) == 130
    assert [rank.poll() for rank in ranks] == [-signal.SIGKILL]


def test_ranks_that_start_after_the_time_of_a_command_is_up_are_killed(monkeypatch):
    for name in ("OVERTIME_SECONDS", "GRACE_SECONDS", "SECONDS_BETWEEN_LOOKS"):
        monkeypatch.setattr(f"fuzzshard.campaign.control.{name}", 0.05)
    control, pids = Control(0.1), []
    with ended_in_time(control, lambda: pids):
        while not control.abandoned:
            time.sleep(0.01)
        with subprocess.Popen(["sleep", "1000"]) as rank:
            pids.append(rank.pid)
            assert rank.wait() == -signal.SIGKILL


def test_ranks_that_were_killed_are_no_broken_machine():
    """An interrupt while ranks start has them fail to."""
    control = Control(None)

    class Killed(FakeWorld):
        def run(
            self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
        ) -> Verdict:
            if case.seed:
                control.abandon()
            raise InfraError("the ranks did not start")

    world = ControlledWorld(Killed(lambda case: PASS, []), control)
    with pytest.raises(InfraError):
        world.run(msgspec.structs.replace(clean_case(2), seed=0))
    with pytest.raises(Stopped):
        world.run(msgspec.structs.replace(clean_case(2), seed=1))
