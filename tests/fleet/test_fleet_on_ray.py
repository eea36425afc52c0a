"""Fleets on a Ray cluster of two nodes on this machine, with real ranks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from cases import make_case
from planting import fault_file

from fuzzshard.campaign.exchange import STOP_FILE, NodeState
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.store import CASE_FILE, NODE_FILE
from fuzzshard.journal.history import History
from fuzzshard.journal.schema import JOURNAL_FILE
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

cluster_utils = pytest.importorskip("ray.cluster_utils")

WRONG_GRADIENT = fault_file("wrong_gradient")
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
SECONDS = 300.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node; tests add the second one."""
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False}
    )
    yield made
    made.shutdown()


class Fleet:
    """A running ``fuzzshard fleet run``, and what is on its disks."""

    def __init__(self, folder: Path, address: str, *options: object) -> None:
        self.corpus, self.local = folder / "corpus", folder / "local"
        self.log = folder / "head.log"
        words = ["fleet", "run", "--corpus", self.corpus, "--local", self.local]
        words += ["--address", address, "--device", "cpu", "--world-size", 2, *options]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fuzzshard", *map(str, words)], stdout=log, stderr=log
            )

    def said(self, words: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if words in line]

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)

    def states(self) -> dict[str, NodeState]:
        files = self.corpus.glob(f"fleet/*/{NODE_FILE}")
        return {
            file.parent.name: msgspec.json.decode(file.read_bytes(), type=NodeState)
            for file in files
        }

    def slot(self, number: int) -> Path:
        (slot,) = self.local.glob(f"*/{number}")
        return slot

    def times_continued(self) -> int:
        return (self.slot(0) / "run.log").read_text().count("goes on after")

    def campaigns(self) -> list[psutil.Process]:
        """Every process of this fleet on its nodes."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.local) in " ".join(process.cmdline()) or (
                    process.cwd().startswith(str(self.local))
                ):
                    found.append(process)
        return found

    def ended(self) -> int:
        code = self.process.wait(SECONDS)
        end = time.monotonic() + 30
        while left := self.campaigns():
            assert time.monotonic() < end, left
            time.sleep(0.1)
        return code


def lent(cluster: Any) -> list[psutil.Process]:
    """The fork servers of actors on the nodes of the cluster, and their ranks."""
    found = []
    raylets = {
        str(each.process.pid)
        for node in cluster.list_all_nodes()
        for each in node.all_processes["raylet"]
    }
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "fuzzshard.world.zygote" in process.cmdline() and (
                process.environ().get("RAY_RAYLET_PID") in raylets
            ):
                found.append(process)
    return found


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def other(cluster: Any) -> Iterator[str]:
    """The id of another node."""
    from fuzzshard.fleet.cluster import cluster_nodes, connected

    with connected(cluster.address):
        before = set(cluster_nodes())
        node = cluster.add_node(**NODE)
        (id,) = cluster_nodes().keys() - before
    yield id
    cluster.remove_node(node)


def findings(corpus: Path) -> list[Path]:
    return sorted(corpus.glob(f"findings/*/{CASE_FILE}"))


def done(corpus: Path) -> list[Path]:
    return [file for file in findings(corpus) if read_entry(file).confirmed is not None]


def test_a_cluster_of_another_python_is_refused_in_one_line(tmp_path, cluster):
    words = ["fleet", "run", "--address", cluster.address, "--corpus", str(tmp_path / "corpus")]
    program = (
        "import ray._private.utils as utils; from fuzzshard import cli\n"
        "utils.compute_version_info = lambda: ('2.0.0', '3.10.0')\n"
        f"cli.main({words})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "Version mismatch" in line
    assert "Python: 3.10.0" in line
    assert not list(tmp_path.iterdir())


def test_a_finding_is_shrunk_once_is_in_the_corpus_and_known_to_the_other_node(tmp_path, cluster):
    options = ("--engine", "fully_shard", "--preload", WRONG_GRADIENT)
    fleet = Fleet(tmp_path, cluster.address, *options)
    fleet.until(lambda: any(state.claims for state in fleet.states().values()))
    second = cluster.add_node(**NODE)
    fleet.until(lambda: len(fleet.said("joined")) == 2)
    fleet.until(lambda: done(fleet.corpus) and done(fleet.slot(1) / "corpus"))
    (fleet.corpus / "fleet" / STOP_FILE).touch()
    assert fleet.ended() == 1
    (file,) = findings(fleet.corpus)
    entry = read_entry(file)
    assert (entry.signature, entry.unshrunk) == ("divergence/fully_shard/gradient", False)
    assert len(fleet.said("new finding")) == 1
    saved = []
    for number in range(2):
        with History(fleet.slot(number) / "corpus" / JOURNAL_FILE) as history:
            saved += list(history.events(1, "finding_saved"))
    assert len(saved) == 1
    assert fleet.said("findings  ")
    assert all(state.ended for state in fleet.states().values())
    cluster.remove_node(second)


def test_agents_and_heads_that_are_killed_go_on_where_they_were(tmp_path, cluster):
    fleet = Fleet(tmp_path, cluster.address, "--seed", 0, "--no-shrink")
    fleet.until(fleet.states)
    (guard,) = [p for p in fleet.campaigns() if "fuzzshard.guard" in p.cmdline()]
    agent = guard.parent()
    assert agent is not None
    agent.kill()
    fleet.until(lambda: fleet.said("returned") and fleet.times_continued() == 1)
    assert len(fleet.said("is lost")) == 1
    (name,) = fleet.states()
    fleet.process.kill()
    fleet.ended()

    again = Fleet(tmp_path, cluster.address, "--seed", 0, "--no-shrink")
    again.until(lambda: len(again.said("joined")) == 2)
    again.until(lambda: again.times_continued() == 2)
    again.process.send_signal(signal.SIGTERM)
    assert again.ended() == 130
    assert list(again.states()) == [name]
    assert "is there" in again.states()[name].ended
    with History(again.slot(0) / "corpus" / JOURNAL_FILE) as history:
        sessions = history.sessions()
    assert {session.campaign for session in sessions} == {1}
    assert len(sessions) == 3


def test_a_world_over_two_nodes_loses_one_case_with_the_actor_of_the_other(cluster, other):
    from fuzzshard.fleet.cluster import borrowing

    with borrowing(cluster.address), World(WorldConfig(2, nodes=(other,))) as world:
        assert world.run(make_case()).status is Status.PASS
        here, there = world._ranks
        processes = lent(cluster)
        assert there.pid in [process.pid for process in processes]
        assert here.pid not in [process.pid for process in processes]
        actor = processes[0].parent()
        assert actor is not None
        actor.kill()
        verdict = world.run(make_case())
        assert verdict.status is Status.INFRA
        assert "is lost with its node" in verdict.message
        assert psutil.wait_procs(processes, SECONDS)[1] == []
        assert world.run(make_case()).status is Status.PASS
    until(lambda: not lent(cluster))


def test_ranks_on_other_nodes_end_with_the_campaign_that_is_killed(tmp_path, cluster, other):
    words = ["run", "--cluster", cluster.address, "--node", other, "--corpus", tmp_path / "corpus"]
    words += ["--device", "cpu", "--world-size", 2, "--engine", "fully_shard", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "fuzzshard", *map(str, words)], stdout=subprocess.PIPE, text=True
    ) as campaign:
        assert campaign.stdout is not None
        assert any('"case_judged"' in line for line in campaign.stdout)
        left = lent(cluster)
        assert len(left) >= 2
        campaign.kill()
    assert psutil.wait_procs(left, SECONDS)[1] == []
    assert not lent(cluster)


def test_worlds_over_two_nodes_find_a_bug_and_get_another_node_for_one_that_is_lost(
    tmp_path, cluster
):
    options = ("--engine", "fully_shard", "--preload", WRONG_GRADIENT, "--no-shrink")
    fleet = Fleet(tmp_path, cluster.address, *options, "--world-nodes", 2)
    fleet.until(lambda: fleet.said("worlds need 2 nodes, and 1 can be had"))
    lending = cluster.add_node(**NODE)
    fleet.until(lambda: any(state.claims for state in fleet.states().values()))
    cluster.remove_node(lending)
    fleet.until(lambda: fleet.said("waits for another node"))
    cluster.add_node(**NODE)
    fleet.until(lambda: done(fleet.corpus))
    (fleet.corpus / "fleet" / STOP_FILE).touch()
    assert fleet.ended() == 1
    until(lambda: not lent(cluster))
    signatures = {read_entry(file).signature for file in findings(fleet.corpus)}
    assert signatures == {"divergence/fully_shard/gradient"}
    assert len(fleet.said("lends its ranks")) == 2
    assert len(fleet.states()) == 1
    with History(fleet.slot(0) / "corpus" / JOURNAL_FILE) as history:
        assert {session.campaign for session in history.sessions()} == {1}
        assert len(history.sessions()) == 2
