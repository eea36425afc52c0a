"""The connection between the coordinator of a world and another node that has ranks of it.

Whoever connects proves that it knows the secret of the two nodes, and so does who listens: each
sends random bytes, and the HMAC of both (RFC 2104, with SHA-256). What follows is not encrypted,
as nothing is that ranks of a training run send each other.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from pathlib import Path

import msgspec

from fuzzshard.errors import UsageError
from fuzzshard.world.activity import Threads
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.messages import read, receive_bytes

GREETING = b"fuzzshard host 1\n"
NUM_BYTES = 32
HANDSHAKE_SECONDS = 10.0
MIN_SECRET = 16

_SILENCE = {
    socket.SO_KEEPALIVE: (socket.SOL_SOCKET, 1),
    socket.TCP_KEEPIDLE: (socket.IPPROTO_TCP, 10),
    socket.TCP_KEEPINTVL: (socket.IPPROTO_TCP, 5),
    socket.TCP_KEEPCNT: (socket.IPPROTO_TCP, 3),
    socket.TCP_USER_TIMEOUT: (socket.IPPROTO_TCP, 25_000),
    socket.TCP_NODELAY: (socket.IPPROTO_TCP, 1),
}
"""A node without power says nothing: after 25 seconds of that it counts as gone, tcp(7)."""


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Enter(_Request, frozen=True, kw_only=True, tag="enter"):
    """First on a connection that is for requests. All ranks of it end when it is closed."""

    versions: dict[str, str]


class Lend(_Request, frozen=True, kw_only=True, tag="lend"):
    """First on a connection that a rank of this ``session`` will have, under this ``name``."""

    session: str
    name: str


class Start(_Request, frozen=True, kw_only=True, tag="start"):
    """Asks for a rank with two lent connections. The answer is :class:`Started`."""

    rank: int
    config: WorldConfig
    channel: str
    side: str


class Kill(_Request, frozen=True, kw_only=True, tag="kill"):
    """Kills a rank and its process group."""

    pid: int


class AskStacks(_Request, frozen=True, kw_only=True, tag="stacks"):
    """Makes a rank print the stacks of its threads."""

    pid: int


class ExitCode(_Request, frozen=True, kw_only=True, tag="exit code"):
    """Asks for the end of a rank. The answer is :class:`Ended`."""

    pid: int


class Printed(_Request, frozen=True, kw_only=True, tag="printed"):
    """Asks what a rank has printed. The answer is :class:`Text`."""

    pid: int
    start: int


class Look(_Request, frozen=True, kw_only=True, tag="look"):
    """Asks what processes do. The answer is :class:`Seen`."""

    pids: tuple[int, ...]


class Descendants(_Request, frozen=True, kw_only=True, tag="descendants"):
    """Asks what processes have started. The answer is :class:`Seen`, with their pids alone."""

    pids: tuple[int, ...]


Request = Start | Kill | AskStacks | ExitCode | Printed | Look | Descendants


class Entered(_Request, frozen=True, kw_only=True, tag="entered"):
    """Requests of this ``session`` may come; the node has these versions and CUDA devices."""

    session: str
    versions: dict[str, str]
    num_devices: int


class Started(_Request, frozen=True, kw_only=True, tag="started"):
    """A rank has been forked."""

    pid: int


class Ended(_Request, frozen=True, kw_only=True, tag="ended"):
    """The exit code of a rank; None if it still runs."""

    code: int | None


class Text(_Request, frozen=True, kw_only=True, tag="text"):
    """What a rank has printed."""

    data: bytes


class Seen(_Request, frozen=True, kw_only=True, tag="seen"):
    """What processes do, by their pids."""

    threads: dict[int, Threads]


class Done(_Request, frozen=True, kw_only=True, tag="done"):
    """It has been done."""


class Refused(_Request, frozen=True, kw_only=True, tag="refused"):
    """It cannot be done."""

    problem: str
    remedy: str = ""


Answer = Entered | Started | Ended | Text | Seen | Done | Refused

first_decoder = msgspec.json.Decoder(Enter | Lend)
request_decoder = msgspec.json.Decoder(Request)
_answer_decoder = msgspec.json.Decoder(Answer)


def receive_answer(channel: socket.socket) -> Answer:
    """Reads the answer to a request; raises OSError when the node is gone."""
    data = receive_bytes(channel)
    if data is None:
        raise ConnectionResetError("it closed the connection")
    try:
        answer: Answer = _answer_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ConnectionResetError(f"it sent something else: {error}") from None
    return answer


def read_secret(path: str) -> bytes:
    """The secret in a file; raises :class:`UsageError` where it cannot be one."""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"the secret in {path} cannot be read: {error.strerror}", "check --secret-file"
        ) from None
    if len(secret) < MIN_SECRET:
        raise UsageError(
            f"the secret in {path} is shorter than {MIN_SECRET} characters",
            f"make one: openssl rand -hex 32 > {path}",
        )
    return secret


def reason(error: OSError) -> str:
    """What has gone wrong with a connection, in words."""
    return os.strerror(error.errno) if error.errno else str(error)


def notice_silence(channel: socket.socket) -> None:
    """Makes a connection fail when the other machine has been silent for too long."""
    for option, (level, value) in _SILENCE.items():
        channel.setsockopt(level, option, value)


def welcome(channel: socket.socket, secret: bytes) -> bool:
    """The listening side of the handshake: whether the other one knows the secret."""
    ours = secrets.token_bytes(NUM_BYTES)
    channel.sendall(GREETING + ours)
    theirs, proof = read(channel, NUM_BYTES), read(channel, NUM_BYTES)
    if theirs is None or proof is None:
        return False
    if not hmac.compare_digest(proof, _proof(secret, b"guest", ours, theirs)):
        return False
    channel.sendall(_proof(secret, b"host", ours, theirs))
    return True


def greet(channel: socket.socket, secret: bytes) -> str:
    """The connecting side of the handshake: why it fails, or nothing. Raises OSError where the
    other one says nothing.
    """
    greeting = read(channel, len(GREETING))
    if greeting is None:
        raise ConnectionResetError("it says nothing")
    theirs = read(channel, NUM_BYTES) if greeting == GREETING else None
    if theirs is None:
        return "what listens there is no fuzzshard host of this version"
    ours = secrets.token_bytes(NUM_BYTES)
    channel.sendall(ours + _proof(secret, b"guest", theirs, ours))
    proof = read(channel, NUM_BYTES)
    if proof is None or not hmac.compare_digest(proof, _proof(secret, b"host", theirs, ours)):
        return "it has another secret"
    return ""


def _proof(secret: bytes, role: bytes, of_host: bytes, of_guest: bytes) -> bytes:
    """Nobody can send back what the other one has sent, as the role is another."""
    return hmac.digest(secret, role + of_host + of_guest, "sha256")
