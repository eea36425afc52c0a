from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from stock_cases import STOCK

from fuzzshard.verdict import Finding
from fuzzshard.world.messages import (
    Ask,
    EngineEntered,
    Failure,
    Joined,
    Message,
    Port,
    Position,
    RankReport,
    Ready,
    RunCase,
    receive,
    send,
)
from fuzzshard.world.supervise import Inbox

FINDING = Finding(
    oracle="gradient", engine="ddp", observed="inf", expected="1", error=float("inf"), bound=0.0
)
MESSAGES: list[Message] = [
    *(RunCase(case=stock.case) for stock in STOCK.values()),
    Port(port=4711),
    Ready(info={"torch": "2.13", "device": "cpu"}),
    EngineEntered(engine="ddp"),
    Failure(
        phase="engine", engine="ddp", message="é\n", detail="d", traceback="t", op=3, desync=True
    ),
    RankReport(
        notes={"ddp": "n"}, comparison="exact", collectives={"ddp": "c"}, replicas={"ddp": "1:2"}
    ),
    RankReport(idle=True),
    Ask(),
    Position(op=-1),
    Position(
        op=2,
        joined=(
            Joined(ranks=(0, 1), number=7, kind="all_gather", sizes="[[2]] -> [[4]]", done=False),
        ),
        recording="{}",
    ),
]


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_every_message_arrives_as_it_was_sent_and_in_order(channel) -> None:
    for message in MESSAGES:
        send(channel[0], message)
        assert receive(channel[1]) == message


def test_messages_may_follow_each_other_without_being_read(channel) -> None:
    sent = [EngineEntered(engine=str(i)) for i in range(20)]
    for message in sent:
        send(channel[0], message)
    assert [receive(channel[1]) for _ in sent] == sent


def test_a_message_that_comes_byte_by_byte_is_one_message(channel) -> None:
    ours, theirs = channel
    wire, tap = socket.socketpair()
    with wire, tap:
        send(wire, Port(port=4711))
        data = tap.recv(1 << 16)
    received: list[Message | None] = []
    reader = threading.Thread(target=lambda: received.append(receive(theirs)))
    reader.start()
    for byte in data:
        ours.send(bytes([byte]))
    reader.join()
    assert received == [Port(port=4711)]


def test_an_inbox_has_what_is_whole_and_never_waits_for_the_rest(channel) -> None:
    ours, theirs = channel
    wire, tap = socket.socketpair()
    with wire, tap:
        for port in (1, 2):
            send(wire, Port(port=port))
        data = tap.recv(1 << 16)
    inbox, taken = Inbox(theirs), list[list[Message | None]]()
    for part in (data[:3], data[3 : len(data) - 1], data[-1:]):
        ours.sendall(part)
        taken.append(inbox.take())
    assert taken == [[], [Port(port=1)], [Port(port=2)]]
    assert inbox.take() == []
    ours.close()
    assert inbox.take() == [None]


def test_a_message_larger_than_any_buffer_arrives(channel) -> None:
    big = EngineEntered(engine="x" * (1 << 22))
    writer = threading.Thread(target=send, args=(channel[0], big))
    writer.start()
    assert receive(channel[1]) == big
    writer.join()


@pytest.mark.parametrize("length", [0, 2, 4, 6])
def test_a_peer_that_goes_away_in_mid_message_has_said_nothing(channel, length: int) -> None:
    ours, theirs = channel
    wire, tap = socket.socketpair()
    with wire, tap:
        send(wire, Port(port=4711))
        ours.sendall(tap.recv(1 << 16)[:length])
    ours.close()
    assert receive(theirs) is None


def test_sending_to_a_peer_that_is_gone_is_an_error(channel) -> None:
    channel[1].close()
    with pytest.raises(OSError, match="Broken pipe"):
        send(channel[0], Port(port=1))


def test_an_infinite_error_is_no_number_in_json_and_crosses_the_wire_as_none(channel) -> None:
    send(channel[0], RankReport(findings=(FINDING,)))
    received = receive(channel[1])
    assert isinstance(received, RankReport)
    assert (received.findings[0].observed, received.findings[0].error) == ("inf", None)
