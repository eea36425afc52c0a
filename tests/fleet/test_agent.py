"""What an agent does on its node, without Ray."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from fuzzshard.campaign.exchange import STOP_FILE
from fuzzshard.errors import EXIT_INTERRUPTED, InfraError, InvalidMessage
from fuzzshard.fleet.agent import Agent, Job, Report, differences, seed_of


class OnNode(Agent):
    """An agent whose campaign only does what it is asked to."""

    def __init__(self, program: str = "import time; time.sleep(90)") -> None:
        super().__init__()
        self.program = program
        self.commands: list[list[str]] = []

    def _command(self) -> list[str]:
        self.commands.append(super()._command())
        return [sys.executable, "-c", self.program]

    def _end_alone(self) -> None:
        """It is in the process of the test."""

    def end(self) -> None:
        """As if its process had been killed."""
        campaign = self._campaign
        assert campaign is not None
        assert campaign.stdin is not None
        campaign.stdin.close()
        campaign.wait(60)
        self._lock.close()


def job(local: Path, *, session: str = "1", node: str = "a", **changes: object) -> Job:
    values = {"options": ("--worlds", "auto"), "seed": None, "campaign": "c", **changes}
    return Job(local=str(local), cluster="head:6379", session=session, node=node, **values)


@pytest.fixture
def agents(tmp_path: Path):
    """Starts agents on this node, and ends them with the test."""
    running: list[OnNode] = []

    def start(program: str = "import time; time.sleep(90)", **asked: object) -> OnNode:
        agent = OnNode(program)
        agent.joined = agent.join(job(tmp_path, **asked))
        agent.first = agent.sync({}, False)
        running.append(agent)
        return agent

    yield start
    for agent in running:
        agent.end()


def sync_until(agent: OnNode, is_there) -> Report:
    end = time.monotonic() + 60
    while not is_there(report := agent.sync({}, False)):
        assert time.monotonic() < end
        time.sleep(0.05)
    return report


def test_agents_of_one_host_take_slots_of_their_own(agents, tmp_path):
    first, second = agents(node="a"), agents(node="b")
    slots = [Path(agent.joined.slot) for agent in (first, second)]
    assert slots == [tmp_path / "c" / "0", tmp_path / "c" / "1"]
    assert first.joined.name != second.joined.name


@pytest.mark.parametrize(
    "asked", [{"session": "2", "node": "b"}, {"session": "1", "node": "a"}], ids=["head", "agent"]
)
def test_one_that_returns_waits_for_its_slot(agents, asked):
    first = agents()
    threading.Timer(0.5, first.end).start()
    assert agents(**asked).joined.slot == first.joined.slot


def test_a_slot_has_a_past_once_its_campaign_told_something(agents, tmp_path):
    first = agents()
    assert first.joined.is_new
    ours = tmp_path / "c" / "0" / "exchange" / first.joined.name
    ours.mkdir()
    (ours / "node.json").write_text("{}")
    assert list(first.sync({}, False).changes) == ["node.json"]
    first.end()
    again = agents()
    assert not again.joined.is_new
    assert list(again.first.changes) == ["node.json"]
    assert again.sync({}, False).changes == {}


def test_what_others_told_in_the_past_makes_room_for_what_they_tell_now(agents, tmp_path):
    first = agents()
    first.sync({"other-1": {"node.json": (0.0, b"{}")}}, True)
    exchange = tmp_path / "c" / "0" / "exchange"
    assert sorted(path.name for path in exchange.iterdir()) == ["other-1", STOP_FILE]
    first.end()
    agents()
    assert not list(exchange.iterdir())


@pytest.mark.parametrize("name", ["..", "stop", "/tmp"])
def test_what_would_be_written_elsewhere_is_refused(agents, name):
    with pytest.raises(InvalidMessage):
        agents().sync({name: {"node.json": (0.0, b"{}")}}, False)


def test_nobody_else_writes_to_the_folder_of_a_node(agents):
    agent = agents()
    with pytest.raises(InvalidMessage):
        agent.sync({agent.joined.name: {"node.json": (0.0, b"{}")}}, False)


def test_a_full_disk_is_told_and_tried_again(agents, monkeypatch):
    def fail(path: Path, data: bytes, **_: object) -> None:
        raise InfraError(f"cannot write {path}: No space left on device", "free some space")

    agent = agents()
    with monkeypatch.context() as patched:
        patched.setattr("fuzzshard.fleet.mirror.write_atomic", fail)
        told = agent.sync({"other-1": {"node.json": (0.0, b"{}")}}, False)
        assert "No space left" in told.problem
    assert agent.sync({}, False).problem == ""
    assert (Path(agent.joined.slot) / "exchange" / "other-1" / "node.json").exists()


def test_seeds_differ_by_node_and_come_back(agents):
    first, second = agents(node="a", seed=0), agents(node="b", seed=0)
    seeds = [
        int(words[words.index("--seed") + 1]) for (words,) in (first.commands, second.commands)
    ]
    assert seeds[0] != seeds[1]
    assert seeds[0] == seed_of(0, first.joined.name)


def test_without_a_seed_none_is_passed_on(agents):
    (words,) = agents().commands
    assert "--seed" not in words
    assert words[4:6] == ["--worlds", "auto"]


def test_the_end_of_a_campaign_and_its_last_words_are_told(agents):
    agent = agents("print('fuzzshard: it is over'); raise SystemExit(3)")
    report = sync_until(agent, lambda report: report.code is not None)
    assert (report.code, report.log) == (3, "fuzzshard: it is over")


def test_a_campaign_that_was_killed_goes_on_and_is_not_fresh(agents, monkeypatch):
    monkeypatch.setattr("fuzzshard.fleet.agent.RESTART_SECONDS", 0.0)
    agent = agents("import os; os.kill(os.getpid(), 9)", options=("--fresh", "--worlds", "auto"))
    report = sync_until(agent, lambda report: report.restarts)
    assert report.code is None
    assert "--fresh" in agent.commands[0]
    assert "--fresh" not in agent.commands[1]


def options_of(words: list[str], option: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def test_a_campaign_waits_for_its_nodes_and_goes_on_with_others_when_these_change(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fuzzshard.fleet.agent.RESTART_SECONDS", 0.0)
    agent = OnNode()
    agent.join(job(tmp_path))
    assert agent.sync({}, False, None).code is None
    assert not agent.commands
    agent.sync({}, False, ("a", "b"))
    agent.sync({}, False, ("a", "b"))
    (words,) = agent.commands
    assert options_of(words, "--node") == ["a", "b"]
    assert options_of(words, "--cluster") == ["head:6379"]
    agent.sync({}, False, None)
    agent._campaign.wait(60)
    agent.sync({}, False, None)
    assert len(agent.commands) == 1
    report = agent.sync({}, False, ("a", "c"))
    assert (report.code, report.restarts) == (None, 1)
    assert options_of(agent.commands[1], "--node") == ["a", "c"]
    agent.end()


def test_a_campaign_that_is_stopped_while_it_lacks_a_node_has_ended(tmp_path):
    agent = OnNode()
    agent.join(job(tmp_path))
    assert agent.sync({}, True, None).code == EXIT_INTERRUPTED


def test_what_ends_with_an_error_of_the_machine_is_told_unless_a_node_is_lost(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fuzzshard.fleet.agent.RESTART_SECONDS", 0.0)
    agent = OnNode("raise SystemExit(4)")
    agent.join(job(tmp_path))
    agent.sync({}, False, ("a",))
    agent._campaign.wait(60)
    assert agent.sync({}, False, None).code is None
    assert agent.sync({}, False, ("a",)).code == 4
    agent.end()


def test_a_local_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InfraError, match="give another --local"):
        OnNode().join(job(tmp_path / "file"))


def test_an_agent_that_nobody_calls_any_more_ends(tmp_path):
    program = (
        "import sys, time, pathlib\n"
        "from fuzzshard.fleet import agent\n"
        "agent.LEASE_SECONDS = 0.5\n"
        "alone = agent.Agent()\n"
        "job = agent.Job(options=(), seed=None, cluster='', local=sys.argv[1], campaign='c', "
        "session='1', node='a')\n"
        "alone.join(job)\n"
        "time.sleep(90)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60)
    assert ended.returncode == 1
    assert (tmp_path / "c" / "0" / "lock").exists()


def test_versions_that_differ_are_named():
    ours = {"Python": "3.11", "torch": "2.15.0"}
    assert differences(ours, ours, "the head") == ""
    assert differences(ours, {**ours, "torch": "2.14.0"}, "the head") == (
        "it has torch 2.14.0, and the head 2.15.0"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("theirs", ["fuzzshard-fleet-0", "fuzzshard-fleet-0/c"])
def test_a_folder_that_somebody_else_has_made_is_not_used(tmp_path, monkeypatch, theirs):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "fuzzshard-fleet-0" / "c"
    folder.mkdir(parents=True)
    os.chown(tmp_path / theirs, 12345, -1)
    with pytest.raises(InfraError, match=f"{theirs} belongs to another user"):
        OnNode().join(dataclasses.replace(job(tmp_path), local=""))
    assert list(folder.iterdir()) == []


def test_a_huge_file_of_a_campaign_is_said_and_the_rest_is_told(agents):
    agent = agents()
    ours = Path(agent.joined.slot) / "exchange" / agent.joined.name
    ours.mkdir()
    (ours / "node.json").write_text("{}")
    with (ours / "stats.json").open("wb") as file:
        file.truncate(2**40)
    told = agent.sync({}, False)
    assert told.changes["node.json"][1] == b"{}"
    assert told.changes["stats.json"] is None
    assert "stats.json" in told.problem
