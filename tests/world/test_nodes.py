"""Worlds whose ranks lie on two nodes: here two addresses of one machine."""

from __future__ import annotations

import contextlib
import selectors
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from cases import make_case
from planting import fault_file

from fuzzshard.analysis.steering import Steering
from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tools import Tools
from fuzzshard.corpus.codec import read_entry
from fuzzshard.doctor import PLANTED_FAULT
from fuzzshard.errors import InfraError, UsageError
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig, nodes
from fuzzshard.world.lender import Lender
from fuzzshard.world.messages import Ask, Port, Ready, send
from fuzzshard.world.nodes import FarChannel, OtherNode, node_of, reaching, telling
from fuzzshard.world.supervise import Inbox

PATIENCE_SECONDS = 30.0


class Direct:
    """A connection to a lender in this process."""

    address, our_address = "127.0.0.2", "127.0.0.1"

    def __init__(self, name: str) -> None:
        self.name = name
        self.lender = Lender()
        self.is_gone = False

    def ask(self, method: str, *arguments: Any, seconds: float | None) -> Any:
        if self.is_gone:
            raise ConnectionError("it is gone")
        return getattr(self.lender, method)(*arguments)

    def tell(self, method: str, *arguments: Any) -> None:
        with contextlib.suppress(ConnectionError, InfraError):
            self.ask(method, *arguments, seconds=None)

    def end(self) -> None:
        self.is_gone = True
        self.lender.close()


class Cluster:
    """A node ``other``, to which the latest connection leads."""

    def __init__(self) -> None:
        self.latest: Direct | None = None
        self.is_reached = True

    def reach(self, id: str) -> Direct:
        assert id == "other"
        if not self.is_reached:
            raise InfraError("the cluster has no node other")
        self.latest = Direct("node two")
        return self.latest

    def family(self) -> list[psutil.Process]:
        """The fork server of the other node, and its ranks."""
        assert self.latest is not None
        server = self.latest.lender._process
        assert server is not None
        process = psutil.Process(server.pid)
        return [process, *process.children(recursive=True)]


def config(**settings: Any) -> WorldConfig:
    return WorldConfig(2, nodes=("other",), **settings)


@pytest.fixture(scope="module")
def of_all_tests() -> Iterator[Cluster]:
    made = Cluster()
    with reaching(made.reach):
        yield made


@pytest.fixture
def cluster(of_all_tests: Cluster) -> Cluster:
    of_all_tests.is_reached = True
    return of_all_tests


def test_each_node_has_half_of_the_ranks_which_listen_at_its_address_only(
    cluster: Cluster,
) -> None:
    with World(config()) as world:
        assert world.run(make_case()).status is Status.PASS
        here, there = world._ranks
        assert world.pids == [here.pid]
        assert there.pid in [process.pid for process in cluster.family()]
        listens = {
            connection.laddr.ip
            for rank in (here, there)
            for connection in psutil.Process(rank.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listens == {"127.0.0.1", "127.0.0.2"}
    assert len(cluster.family()) == 1  # its fork server
    assert cluster.latest is not None
    assert not cluster.latest.lender._channels


def test_a_campaign_over_two_nodes_finds_and_shrinks_a_planted_bug(
    cluster: Cluster, tmp_path: Path
) -> None:
    options = CampaignOptions(
        corpus=tmp_path / "corpus",
        device="cpu",
        world_size=2,
        nodes=("other",),
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


def test_a_hang_is_seen_and_described_across_nodes(cluster: Cluster) -> None:
    preload = (str(fault_file("sleeps_on_one_rank")),)
    with World(config(preload=preload)) as world:
        world.run(make_case(engines=("ddp",)))
        verdict = world.run(make_case(engines=("fully_shard",)), deadline=4.0)
    assert (verdict.status, verdict.signature) == (Status.HANG, "desync/fully_shard")
    assert "rank 1" in verdict.findings[0].observed
    assert all("Current thread" in verdict.stacks[f"rank {rank}"] for rank in (0, 1))


def test_a_killed_rank_of_another_node_costs_its_world_one_case(cluster: Cluster) -> None:
    with World(config()) as world:
        world.start()
        _, there = world._ranks
        psutil.Process(there.pid).kill()
        verdict = world.run(make_case())
        assert verdict.status is Status.INFRA
        assert "rank 1 was killed by SIGKILL" in verdict.message
        assert world.run(make_case()).status is Status.PASS


def test_a_lost_node_costs_its_world_one_case_and_no_other_world_any(cluster: Cluster) -> None:
    told: list[tuple[str, bool]] = []
    with (
        telling(lambda name, is_lost: told.append((name, is_lost))),
        World(config()) as world,
        World(WorldConfig(1)) as alone,
    ):
        assert world.run(make_case()).status is Status.PASS
        alone.start()
        left, before = cluster.family(), alone.pids
        assert cluster.latest is not None
        cluster.is_reached = False
        cluster.latest.end()
        verdict = world.run(make_case())
        assert verdict.status is Status.INFRA
        assert "lost with its node: nobody answers at node two" in verdict.message
        assert alone.run(make_case(mesh=1)).status is Status.PASS
        assert alone.pids == before
        assert psutil.wait_procs(left, PATIENCE_SECONDS)[1] == []
        returning = threading.Timer(0.5, setattr, (cluster, "is_reached", True))
        returning.start()
        assert world.run(make_case()).status is Status.PASS
        returning.join()
    assert told == [("node two", True), ("node two", False)]


def test_a_node_that_does_not_come_back_ends_the_waiting(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_known", {})
    monkeypatch.setattr(nodes, "RETURN_SECONDS", 0.6)
    monkeypatch.setattr(Lender, "import_torch", lambda self: None)  # no rank starts
    known = node_of("other", config())
    assert node_of("other", config()) is known
    known.close()
    returned = node_of("other", config())
    assert returned is not known
    returned.close()
    cluster.is_reached = False
    with pytest.raises(InfraError, match=r"node two is lost and has not come back in 0.01 min"):
        node_of("other", config())


def test_a_node_that_is_not_there_at_first_is_not_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_known", {})
    cluster.is_reached = False
    with pytest.raises(InfraError, match="the cluster has no node other"):
        node_of("other", config())


def test_a_node_with_too_few_devices_is_refused(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="node two has 0 CUDA devices, and its ranks need 1"):
        node_of("other", config(device="cuda"))


def test_a_node_whose_fork_server_cannot_start_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzshard.world.processes.sys.executable", "/bin/false")
    node = OtherNode(cluster.reach("other"))
    with pytest.raises(InfraError, match="node two: the fork server cannot start"):
        node.start_rank(1, config())
    node.close()
    node.join()


def test_ranks_of_other_nodes_end_when_nobody_reaches_these_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "_known", {})
    made = Cluster()
    with reaching(made.reach):
        world = World(config())
        world.start()
        left = made.family()
        assert len(left) == 2
    assert psutil.wait_procs(left, PATIENCE_SECONDS)[1] == []
    world.close()


class Silent:
    """A connection of which nobody hears."""

    def tell(self, method: str, *arguments: Any) -> None:
        pass


def is_readable(channel: FarChannel) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        return bool(selector.select(0))


def test_a_channel_to_another_node_reads_as_a_socket_does() -> None:
    sent, sending = bytes_of([Port(port=1), Ready(info={}), Ask()])
    channel = FarChannel((0, "channel"), Silent())  # type: ignore[arg-type]
    inbox = Inbox(channel)
    assert not is_readable(channel)
    assert inbox.take() == []
    channel.hear(sent[:3])
    assert is_readable(channel)
    assert inbox.take() == []
    assert not is_readable(channel)
    channel.hear(sent[3:])
    channel.hear(b"")
    assert inbox.take() == sending
    assert is_readable(channel)
    assert inbox.take() == [None]
    assert inbox.take() == [None]
    channel.close()
    channel.hear(b"late")


def bytes_of(messages: list[Any]) -> tuple[bytes, list[Any]]:
    """The bytes of ``messages`` as they are sent, and these."""

    class Written(Silent):
        data = b""

        def sendall(self, data: bytes) -> None:
            self.data += data

    written = Written()
    for message in messages:
        send(written, message)  # type: ignore[arg-type]
    return written.data, messages


def test_nodes_share_a_world_equally() -> None:
    with pytest.raises(UsageError, match="2 nodes cannot share a world of 3 ranks equally"):
        WorldConfig(3, nodes=("other",))
    shared = WorldConfig(8, nodes=("other",), device="cuda")
    assert [shared.node_of(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    assert [shared.device_of(rank) for rank in range(8)] == [0, 1, 2, 3] * 2
