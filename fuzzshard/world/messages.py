"""What ranks and the coordinator say to each other: length-prefixed JSON. No torch import."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import Subject, Training
from fuzzshard.verdict import Compared, Finding

_LENGTH = struct.Struct("!I")


class _Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    pass


class RunCase(_Message, frozen=True, kw_only=True, tag="run"):
    """Coordinator to every rank. ``bare`` trains without observing or judging (for benchmarks).

    ``mends`` are the names of those that torch is to have meanwhile.
    """

    case: Case
    bare: bool = False
    mends: tuple[str, ...] = ()


class CheckSubject(_Message, frozen=True, kw_only=True, tag="check"):
    """Coordinator to every rank: train a model of the user's own, plain and parallelised.

    ``path`` is where the coordinator imports modules from.
    """

    subject: Subject
    training: Training
    path: tuple[str, ...] = ()


class Port(_Message, frozen=True, kw_only=True, tag="port"):
    """Where the store of the world listens: rank 0 to the coordinator, the coordinator to the
    others.
    """

    port: int


class Ready(_Message, frozen=True, kw_only=True, tag="ready"):
    """A rank has joined its world; ``info`` describes its torch and device."""

    info: dict[str, str]


class EngineEntered(_Message, frozen=True, kw_only=True, tag="progress"):
    """A rank enters an engine; what runs when a rank hangs or dies."""

    engine: str


class Tripped(_Message, frozen=True, kw_only=True, tag="tripped"):
    """A rank has come to a line of torch where a known bug occurs.

    It is sent before that line runs, as the rank may die of it.
    """

    cause: str


class Failure(_Message, frozen=True, kw_only=True, tag="failure"):
    """An exception in a rank.

    ``detail`` names it for a signature. ``phase`` is ``setup`` (joining, preloading: our fault or
    the machine's), ``engine``, ``judge`` or ``subject`` (what the user gave cannot be used).
    ``desync`` says that a collective lost its peer, ``machine`` what the machine lacks where that
    is the reason, ``kernel`` what CUDA says of a kernel that failed, ``expected`` describes the
    other error that the case expects of the engine.
    ``findings`` are what the rank saw before, ``warned`` what torch warned of in a check.
    """

    phase: Literal["setup", "engine", "judge", "subject"]
    engine: str
    message: str
    detail: str
    traceback: str
    machine: str = ""
    kernel: str = ""
    op: int = -1
    desync: bool = False
    expected: str = ""
    findings: tuple[Finding, ...] = ()
    warned: tuple[str, ...] = ()


class RankReport(_Message, frozen=True, kw_only=True, tag="report"):
    """What one rank found in one case. Digests are compared between ranks by the coordinator.

    ``refused`` are the engines that raised a documented error; ``notes`` have its text. ``ran``
    are the mends of which a function has run (:meth:`fuzzshard.mending.patch.Mended.ran`).
    """

    findings: tuple[Finding, ...] = ()
    notes: dict[str, str] = {}
    refused: tuple[str, ...] = ()
    comparison: str = ""
    compared: dict[str, Compared] = {}
    collectives: dict[str, str] = {}
    replicas: dict[str, str] = {}
    ran: tuple[str, ...] = ()
    idle: bool = False


class CheckReport(_Message, frozen=True, kw_only=True, tag="checked"):
    """What one rank found out of a model of the user's own."""

    checked: TrainingReport


class Ask(_Message, frozen=True, kw_only=True, tag="ask"):
    """Coordinator to a rank that seems to hang, on its side channel: where are you?"""


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """One collective that a rank has joined.

    ``number`` counts the collectives of its process group, whose global ``ranks`` are given;
    ``done`` says that it has ended on this rank.
    """

    ranks: tuple[int, ...]
    number: int
    kind: str
    sizes: str
    done: bool


class Position(_Message, frozen=True, kw_only=True, tag="position"):
    """Where a rank is: the op of the schedule (-1: none), and the latest collectives that it has
    joined.

    ``recording`` is torch's flight recorder as it is, a JSON text. ``doing`` is what the check of
    a model of the user's own is doing.
    """

    op: int
    doing: str = ""
    joined: tuple[Joined, ...] = ()
    recording: str = ""


Message = (
    RunCase
    | CheckSubject
    | Port
    | Ready
    | EngineEntered
    | Tripped
    | Failure
    | RankReport
    | CheckReport
    | Ask
    | Position
)
_decoder = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()


class Channel(Protocol):
    """The coordinator's end of a channel to a rank: a socket, or what does as one."""

    def fileno(self) -> int:
        """Return what a selector waits for."""

    def recv(self, size: int, flags: int, /) -> bytes:
        """Do as a socket's does with MSG_DONTWAIT."""

    def sendall(self, data: bytes, /) -> None:
        """Do as a socket's does."""

    def close(self) -> None:
        """Do as a socket's does."""


def send(channel: Channel, message: msgspec.Struct) -> None:
    """Writes one message; raises OSError when the peer is gone."""
    data = _encoder.encode(message)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket) -> Message | None:
    """Reads one message; None when the peer closed its end."""
    header = read(channel, _LENGTH.size)
    if header is None:
        return None
    data = read(channel, _LENGTH.unpack(header)[0])
    return None if data is None else _decoder.decode(data)


def decoded(data: bytearray) -> Iterator[Message]:
    """Yield the messages at the front of ``data`` that are whole; they are taken out of it."""
    while len(data) >= _LENGTH.size and len(data) >= (
        end := _LENGTH.size + _LENGTH.unpack_from(data)[0]
    ):
        yield _decoder.decode(data[_LENGTH.size : end])
        del data[:end]


def read(channel: socket.socket, size: int) -> bytes | None:
    """Reads ``size`` bytes; None when the peer closed its end, or cannot be reached any more."""
    chunks = bytearray()
    while len(chunks) < size:
        try:
            chunk = channel.recv(size - len(chunks))
        except OSError:
            return None
        if not chunk:
            return None
        chunks += chunk
    return bytes(chunks)
