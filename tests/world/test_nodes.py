"""Worlds whose ranks lie on two nodes: here two addresses of one machine."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from cases import make_case

from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tools import Tools
from fuzzshard.case.steering import Steering
from fuzzshard.corpus.codec import read_entry
from fuzzshard.doctor import PLANTED_FAULT, examine
from fuzzshard.errors import FuzzshardError, InfraError, UsageError
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig
from fuzzshard.world import host as hosting
from fuzzshard.world.host import Host, listening, name_of
from fuzzshard.world.hosts import RemoteNode, host_at, telling
from fuzzshard.world.processes import ForkServer

FAULTS = Path(__file__).parents[1] / "planted" / "faults"
PATIENCE_SECONDS = 30.0


class OtherNode:
    """``fuzzshard host`` as a process, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.secret_file = folder / "secret"
        self.secret_file.write_text(secrets.token_hex(32))
        self.name = "127.0.0.2:0"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "fuzzshard", "host"),
                *("--listen", self.name, "--secret-file", str(self.secret_file)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.name = self.process.stdout.readline().removeprefix("listening at ").strip()

    def config(self, **settings: object) -> WorldConfig:
        return WorldConfig(2, hosts=(self.name,), secret_file=str(self.secret_file), **settings)  # type: ignore[arg-type]

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherNode]:
    other = OtherNode(tmp_path_factory.mktemp("node"))
    yield other
    if other.process.poll() is None:
        other.end(signal.SIGKILL)


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_doctor_passes_over_two_nodes_of_which_each_has_a_rank(node: OtherNode) -> None:
    config = node.config()
    assert [check.text for check in examine(World, config) if not check.ok] == []
    with World(config) as world:
        world.start()
        here, there = world._ranks
        assert world.pids == [here.pid]
        assert there.pid in [process.pid for process in node.family()]
        listens = {
            connection.laddr.ip
            for rank in (here, there)
            for connection in psutil.Process(rank.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listens == {"127.0.0.1", "127.0.0.2"}
    wait_until(lambda: len(node.family()) == 1)  # its fork server


def test_a_campaign_over_two_nodes_finds_and_shrinks_a_planted_bug(
    node: OtherNode, tmp_path: Path
) -> None:
    options = CampaignOptions(
        corpus=tmp_path / "corpus",
        device="cpu",
        world_size=2,
        hosts=(node.name,),
        secret_file=node.secret_file,
        preload=(PLANTED_FAULT,),
        steering=Steering(only=("engine:fully_shard",)),
        mends="off",
        max_findings=1,
        max_time=120,
        seed=3,
    )
    events: list[object] = []
    outcome = SimpleNamespace(fails=False, output="")
    code = run_campaign(options, events.append, tools=Tools(check=lambda *_, **__: outcome))
    assert code == 1
    (entry,) = map(read_entry, options.corpus.glob("findings/*/case.json"))
    assert entry.signature == "divergence/fully_shard/gradient"
    assert not entry.unshrunk


def test_a_hang_is_seen_and_described_across_nodes(node: OtherNode) -> None:
    preload = (str(FAULTS / "sleeps_on_one_rank.py"),)
    with World(node.config(preload=preload)) as world:
        world.run(make_case(engines=("ddp",)))
        verdict = world.run(make_case(engines=("fully_shard",)), deadline=4.0)
    assert (verdict.status, verdict.signature) == (Status.HANG, "desync/fully_shard")
    assert "rank 1" in verdict.findings[0].observed
    assert all("Current thread" in verdict.stacks[f"rank {rank}"] for rank in (0, 1))


def test_a_killed_node_costs_its_world_one_case_and_no_other_world_any(node: OtherNode) -> None:
    told: list[tuple[str, bool]] = []
    with (
        telling(lambda name, is_lost: told.append((name, is_lost))),
        World(node.config()) as world,
        World(WorldConfig(1)) as other,
    ):
        assert world.run(make_case()).status is Status.PASS
        other.start()
        left, before = node.family(), other.pids
        node.end(signal.SIGKILL)
        verdict = world.run(make_case())
        assert verdict.status is Status.INFRA
        assert f"lost with its node: nobody answers at {node.name}" in verdict.message
        assert other.run(make_case(mesh=1)).status is Status.PASS
        assert other.pids == before
        assert psutil.wait_procs(left, PATIENCE_SECONDS)[1] == []
        returning = threading.Timer(0.5, node.start)
        returning.start()
        assert world.run(make_case()).status is Status.PASS
        returning.join()
    assert told == [(node.name, True), (node.name, False)]


def test_ranks_end_with_the_coordinator_that_has_no_time_to_say_so(node: OtherNode) -> None:
    code = (
        "import sys, time; from fuzzshard.world import World, WorldConfig\n"
        "world = World(WorldConfig(2, hosts=(sys.argv[1],), secret_file=sys.argv[2]))\n"
        "world.start(); print(world._ranks[1].pid, flush=True); time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", code, node.name, str(node.secret_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
        assert coordinator.stdout is not None
        pid = int(coordinator.stdout.readline())
        coordinator.kill()
    wait_until(lambda: not psutil.pid_exists(pid))


def test_a_host_that_is_asked_to_end_leaves_nothing(node: OtherNode) -> None:
    with World(node.config()) as world:
        world.start()
        left = node.family()
        assert len(left) == 2
        assert node.end(signal.SIGTERM) == 0
    assert psutil.wait_procs(left, PATIENCE_SECONDS)[1] == []


SECRET = b"known to both of the nodes"


@pytest.fixture
def own_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a host in this process listens, which has no fork server yet."""
    monkeypatch.setattr(ForkServer, "import_torch", lambda self: None)
    with listening("127.0.0.2:0") as server:
        lending = Host(server, SECRET, lambda line: None)
        serving = threading.Thread(target=lending.serve)
        serving.start()
        yield name_of(server)
        lending.close()
        serving.join()


def problem_of(name: str, secret: bytes = SECRET) -> str:
    with pytest.raises(FuzzshardError) as caught:
        RemoteNode(name, secret)
    return str(caught.value)


def test_another_secret_is_told_from_other_versions(
    own_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    RemoteNode(own_host, SECRET).close()
    assert "it has another secret; give both nodes" in problem_of(own_host, b"another secret")
    monkeypatch.setattr(hosting, "versions", lambda: {"Python": "3.8"})
    assert f"{own_host} cannot be used: it has Python 3.8, and this node" in problem_of(own_host)


def test_nobody_who_does_not_know_the_secret_is_served(own_host: str) -> None:
    address, _, port = own_host.rpartition(":")
    with socket.create_connection((address, int(port))) as channel:
        channel.recv(1000)
        channel.sendall(
            secrets.token_bytes(64) + b'\0\0\0\x22{"type":"enter","versions":{"a":"b"}}'
        )
        with contextlib.suppress(ConnectionResetError):
            assert channel.recv(1000) == b""


def test_what_listens_there_may_be_something_else_or_nothing() -> None:
    with listening("127.0.0.2:0") as server:
        name = name_of(server)

        def answer() -> None:
            channel, _ = server.accept()
            with channel:
                channel.sendall(b"SSH-2.0-OpenSSH_9.6 and more\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        assert "no fuzzshard host of this version" in problem_of(name)
        answering.join()
    assert f"nobody answers at {name}: Connection refused; start" in problem_of(name)


def test_a_node_that_does_not_come_back_ends_the_waiting(
    own_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzshard.world.hosts.RETURN_SECONDS", 0.6)
    (tmp_path / "secret").write_bytes(SECRET)
    config = WorldConfig(2, hosts=(own_host,), secret_file=str(tmp_path / "secret"))
    known = host_at(own_host, config)
    assert host_at(own_host, config) is known
    known.close()
    returned = host_at(own_host, config)
    assert returned is not known
    returned.close()
    monkeypatch.setattr("fuzzshard.world.hosts.CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(RemoteNode, "_connect", lambda self: (_ for _ in ()).throw(InfraError("")))
    with pytest.raises(InfraError, match=r"is lost and has not come back in 0.01 minutes"):
        host_at(own_host, config)


def test_nodes_share_a_world_equally_and_a_secret_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 nodes cannot share a world of 3 ranks equally"):
        WorldConfig(3, hosts=("10.0.0.2:1",))
    config = WorldConfig(8, hosts=("10.0.0.2:1",), device="cuda")
    assert [config.node_of(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    assert [config.device_of(rank) for rank in range(8)] == [0, 1, 2, 3] * 2
    with pytest.raises(UsageError, match="--secret-file"):
        CampaignOptions(corpus=tmp_path, hosts=("10.0.0.2:1",))
    with pytest.raises(UsageError, match="node2 is not ADDRESS:PORT"):
        CampaignOptions(corpus=tmp_path, hosts=("node2",))
