from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import subprocess, sys
from pathlib import Path
from fake_campaign import *
from fuzzshard.campaign import control, reduce
from fuzzshard.report.sinks import make_sink

control.GRACE_SECONDS = 0.3
reduce.shrink = shrink_seed_and_norm
corpus, hang_at, sys.argv = Path(sys.argv[1]), sys.argv[2], []

class HangingWorld(FakeWorld):
    def run(self, case, *, deadline=None):
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
    check=lambda path, num_ranks, *, preload=(), timeout=120: FakeScriptResult(True),
)
with make_sink(json=True) as sink:
    sys.exit(run_campaign(CampaignOptions(corpus=corpus, device="cpu"), sink, tools=tools))
"""


def interrupted(corpus: Path, hang_at: str, number: signal.Signals) -> tuple[int, list[dict]]:
    """Starts a campaign that hangs where asked, interrupts it there; its exit code and its events."""
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
def test_a_signal_stops_a_hanging_campaign_promptly_with_its_finding_and_its_summary(tmp_path, number):
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
