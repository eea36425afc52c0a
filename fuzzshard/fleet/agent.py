"""What runs on each node of a fleet: an ordinary campaign, and the mirror of its exchange.

::

    LOCAL/CAMPAIGN/0/corpus      of the campaign, which goes on with it when it returns
    LOCAL/CAMPAIGN/0/exchange    what this campaign and those of other nodes tell
    LOCAL/CAMPAIGN/0/run.log     what ``fuzzshard run`` prints
"""

from __future__ import annotations

import dataclasses
import fcntl
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO

from fuzzshard import __version__
from fuzzshard.campaign.exchange import STOP_FILE, node_name
from fuzzshard.contracts import installed_torch
from fuzzshard.corpus.files import open_folder, write_atomic
from fuzzshard.corpus.lifecycle import release
from fuzzshard.errors import (
    EXIT_INFRA,
    EXIT_INTERRUPTED,
    FuzzshardError,
    InfraError,
    InvalidMessage,
)
from fuzzshard.fleet.mirror import (
    Changes,
    Snapshot,
    apply_changes,
    changes_since,
    check_node_name,
    check_paths,
)

SLOT_SECONDS = 60.0
"""How long an agent waits for a slot whose last owner is about to end."""
RESTART_SECONDS = 10.0
"""A campaign that was killed goes on after as long, counted from its last start."""
LEASE_SECONDS = 300.0
"""An agent that nobody has called for as long ends, and its campaign with it: the head has given
it up.
"""
LOG_FILE = "run.log"
TAIL_BYTES = 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What an agent is to run: ``options`` of ``fuzzshard run`` without corpus, exchange and seed.

    ``cluster`` is the address of the Ray cluster. ``local`` is the folder of fleets on the node,
    "" for the usual one; ``campaign`` the name of this fleet's folder in there. ``session`` names
    the head, and ``node`` the node within the session.
    """

    options: tuple[str, ...]
    seed: int | None
    cluster: str
    local: str
    campaign: str
    session: str
    node: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joined:
    """The name of the campaign's folder in exchanges, and whether its slot was empty before."""

    name: str
    slot: str
    is_new: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What an agent answers: what has changed in its folder, and how its campaign is.

    ``code`` is None while the campaign runs; ``log`` is the end of its log once it has ended;
    ``restarts`` counts how often it was killed and started again. ``problem`` says why the agent
    could not write what others have told, or read what its campaign tells.
    """

    changes: Changes
    code: int | None
    log: str
    restarts: int
    problem: str


class Agent:
    """The actor of a node.

    The campaign runs for as long as this process lives and no longer (:mod:`fuzzshard.guard`).
    """

    def __init__(self) -> None:
        self._others: dict[str, Changes] = {}
        self._told: Snapshot = {}
        self._campaign: subprocess.Popen[bytes] | None = None
        self._nodes: tuple[str, ...] = ()
        self._began = -math.inf
        self._restarts = 0
        self._is_stopped = False

    def greet(self) -> tuple[str, dict[str, str]]:
        """Return the name of the host and its :func:`versions`."""
        return socket.gethostname(), versions()

    def join(self, job: Job) -> Joined:
        """Take a slot, in which the campaign begins with the first :meth:`sync` that has its
        nodes.
        """
        self._job = job
        self._slot, self._lock = _take_slot(job)
        self._called = time.monotonic()
        threading.Thread(target=self._end_alone, daemon=True).start()
        self._corpus, self._exchange = self._slot / "corpus", self._slot / "exchange"
        self._ours = self._exchange / node_name(self._corpus)
        is_new = not self._ours.exists()
        self._exchange.mkdir(exist_ok=True)
        for path in self._exchange.iterdir():
            if path.name == STOP_FILE:
                path.unlink()
            elif path != self._ours:
                shutil.rmtree(path)
        return Joined(name=self._ours.name, slot=str(self._slot), is_new=is_new)

    def sync(
        self, others: dict[str, Changes], stop: bool, nodes: tuple[str, ...] | None = ()
    ) -> Report:
        """Write what ``others`` have told; return what this node has told since the last call.

        The first call tells everything, and starts the campaign once it knows what others have
        told. Its worlds lie on this node and on ``nodes`` of the cluster; None if one of these is
        missing. A campaign with other nodes than these is killed, and goes on as soon as there are
        all. With ``stop`` it ends as soon as it can. What is told once it has ended is everything.
        """
        self._called = time.monotonic()
        problem = self._take_over(others)
        if stop and not self._is_stopped:
            write_atomic(self._exchange / STOP_FILE, b"")
            self._is_stopped = True
        code = self._code()
        unread: list[str] = []
        changes, self._told = changes_since(self._ours, self._told, unread.append)
        if code is None and self._campaign is not None and nodes != self._nodes and not stop:
            self._campaign.kill()
        elif self._campaign is None or (code is not None and self._is_cut_off(code, nodes)):
            if self._is_stopped and nodes is None:
                code = EXIT_INTERRUPTED
            elif self._campaign is None or not self._is_stopped:
                code = None
                if nodes is not None and time.monotonic() - self._began >= RESTART_SECONDS:
                    self._restarts += self._campaign is not None
                    self._start_campaign(nodes)
        return Report(
            changes=changes,
            code=code,
            log="" if code is None else self._log_tail(),
            restarts=self._restarts,
            problem=problem or next(iter(unread), ""),
        )

    def _is_cut_off(self, code: int, nodes: tuple[str, ...] | None) -> bool:
        """Return whether a campaign that ended so goes on. One that could not begin may lack a
        node of which the head has not heard yet that it is lost.
        """
        lacks_node = nodes != self._nodes or time.monotonic() - self._began < RESTART_SECONDS
        was_killed = code > 128 and code != EXIT_INTERRUPTED
        return was_killed or (code == EXIT_INFRA and bool(self._nodes) and lacks_node)

    def _end_alone(self) -> None:
        while (left := self._called + LEASE_SECONDS - time.monotonic()) > 0:
            time.sleep(left)
        os._exit(1)

    def _take_over(self, others: dict[str, Changes]) -> str:
        """Writes what others have told; returns why not, and tries again in the next call."""
        for name, changes in others.items():
            check_node_name(name)
            check_paths(changes)
            if name in (self._ours.name, STOP_FILE):
                raise InvalidMessage(f"{name!r} is not the folder of another node")
            self._others.setdefault(name, {}).update(changes)
        try:
            for name in list(self._others):
                apply_changes(self._exchange / name, self._others[name])
                del self._others[name]
        except (FuzzshardError, OSError) as error:
            return str(error)
        return ""

    def _start_campaign(self, nodes: tuple[str, ...]) -> None:
        self._nodes = nodes
        self._began = time.monotonic()
        with self._log.open("ab") as log:
            self._campaign = subprocess.Popen(
                [sys.executable, "-m", "fuzzshard.guard", *self._command()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._slot,
                pass_fds=(self._lock.fileno(),),  # so the slot is taken until all has ended
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        """What runs the campaign. One that goes on is not a fresh one, whatever was asked for."""
        words = [word for word in self._job.options if not (self._restarts and word == "--fresh")]
        if self._job.seed is not None:
            words += ["--seed", str(seed_of(self._job.seed, self._ours.name))]
        if self._nodes:
            words += ["--cluster", self._job.cluster]
            words += [word for node in self._nodes for word in ("--node", node)]
        words += ["--corpus", str(self._corpus), "--exchange", str(self._exchange)]
        return [sys.executable, "-m", "fuzzshard", "run", *words]

    @property
    def _log(self) -> Path:
        return self._slot / LOG_FILE

    def _code(self) -> int | None:
        code = None if self._campaign is None else self._campaign.poll()
        return code if code is None or code >= 0 else 128 - code

    def _log_tail(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


def seed_of(seed: int, name: str) -> int:
    """Return the seed of the node ``name`` in a fleet with this ``seed``."""
    return int.from_bytes(sha256(f"{seed}/{name}".encode()).digest()[:4], "big")


def _take_slot(job: Job) -> tuple[Path, IO[str]]:
    """Return the first slot that no other node of this session has, and its lock.

    One that an earlier head, or an earlier agent of this node, still holds is about to be free.
    """
    place = Path(job.local or tempfile.gettempdir())
    usual = place if job.local else place / f"fuzzshard-fleet-{os.getuid()}"
    root = usual / job.campaign
    end = time.monotonic() + SLOT_SECONDS
    try:
        place.mkdir(parents=True, exist_ok=True)
        with open_folder(root, below=place, make=True, mode=0o700):
            pass  # nobody else can replace what is in there
        number = 0
        while True:
            slot = root / str(number)
            slot.mkdir(exist_ok=True)
            lock = (slot / "lock").open("a+")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                session, _, node = lock.read().partition(" ")
                lock.close()
                if (session == job.session and node != job.node) or time.monotonic() >= end:
                    number += 1
                else:
                    time.sleep(0.2)
            else:
                lock.truncate(0)
                lock.write(f"{job.session} {job.node}")
                lock.flush()
                (slot / LOG_FILE).touch()
                return slot, lock
    except OSError as error:
        raise InfraError(
            f"cannot write in {root}: {error.strerror}", "give another --local"
        ) from None


def versions() -> dict[str, str]:
    """Return what must be equal on all nodes that work together."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": release(installed_torch()),
        "fuzzshard": __version__,
    }


def differences(ours: Mapping[str, str], theirs: Mapping[str, str], us: str) -> str:
    """Return in words which versions of another node are not ``ours``; "" where all are."""
    return ", ".join(
        f"it has {name} {theirs.get(name)}, and {us} {version}"
        for name, version in ours.items()
        if theirs.get(name) != version
    )
