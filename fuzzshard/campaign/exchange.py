"""What campaigns on other nodes find and work on, told through a folder that all of them reach.

Each campaign writes to a folder of its own there, and reads those of the others. So no two
processes ever write to one file, and any file system that several machines can mount will do.

::

    EXCHANGE/NODE/node.json       that it lives, and the signatures that it works on
    EXCHANGE/NODE/stats.json      its figures
    EXCHANGE/NODE/findings/       a copy of what it has found
    EXCHANGE/stop                 a file that ends every campaign
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from fuzzshard.campaign.control import Control
from fuzzshard.campaign.keep import NOT_RUN, Keeper
from fuzzshard.campaign.known import Found, Registry
from fuzzshard.campaign.saved import known_of
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.distinct import FindingKey, Stored, finding_key
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.gather import add
from fuzzshard.corpus.scripts import ScriptRender
from fuzzshard.corpus.store import (
    CASE_FILE,
    FINDINGS_FOLDER,
    NODE_FILE,
    SCRIPT_FILE,
    STATS_FILE,
)
from fuzzshard.errors import FuzzshardError, InvalidEntry, UsageError
from fuzzshard.events import Event, Exchanged

STOP_FILE = "stop"
SECONDS_BETWEEN = 10.0
"""How often a campaign looks what the others have."""
CLOSING_SECONDS = 10.0
"""How long the end of a campaign waits for the last round."""
SILENT_SECONDS = 120.0
"""A campaign that has not written its file for as long is lost, and what it worked on is free."""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign, as it tells the others. ``claims`` has the signatures that it works on, and
    since when (seconds since 1970); ``ended`` is why it ended.
    """

    host: str
    pid: int
    corpus: str
    claims: dict[str, float] = {}
    ended: str = ""


def node_name(corpus: Path) -> str:
    """The name of the campaign in ``corpus`` on this machine, the same when it is continued."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    return f"{host}-{sha256(str(corpus.resolve()).encode()).hexdigest()[:8]}"


def check_exchange(exchange: Path, corpus: Path) -> None:
    """Raises :class:`UsageError` for an ``exchange`` that cannot be one."""
    if not exchange.is_dir():
        raise UsageError(
            f"{exchange}, the exchange, is not a folder",
            "create it where all nodes can reach it",
        )
    ours, theirs = corpus.resolve(), exchange.resolve()
    if ours == theirs or theirs in ours.parents or ours in theirs.parents:
        raise UsageError(
            f"the exchange {exchange} and the corpus {corpus} lie in one another",
            "give every node a corpus of its own, on its own disk",
        )


Condition = Literal["running", "ended", "lost"]


@dataclasses.dataclass(frozen=True)
class NodeSeen:
    """One campaign as its file tells it, ``silent`` seconds ago."""

    folder: Path
    state: NodeState
    silent: float

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def condition(self) -> Condition:
        """Lost: it said nothing of an end, and has been silent for too long."""
        if self.state.ended:
            return "ended"
        return "running" if self.silent < SILENT_SECONDS else "lost"


def read_nodes(exchange: Path, now: float) -> list[NodeSeen]:
    """All campaigns that took part, by name; without those whose files cannot be read.

    ``now`` is by the clock of the file system, which files written there tell: clocks of nodes
    differ.
    """
    nodes = []
    for file in sorted(exchange.glob(f"*/{NODE_FILE}")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            state = msgspec.json.decode(file.read_bytes(), type=NodeState)
            nodes.append(NodeSeen(file.parent, state, max(0.0, now - file.stat().st_mtime)))
    return nodes


class Exchange:
    """The part of one campaign that talks with the others, in a thread of its own; any thread may
    use it.

    An ``exchange`` that is not there, full or read-only ends nothing: it is said once, and what is
    found goes there when it is back. ``returned`` gets the findings that waited for another
    campaign.
    """

    def __init__(
        self,
        exchange: Path,
        *,
        registry: Registry,
        keeper: Keeper,
        control: Control,
        returned: deque[Found],
        render: ScriptRender,
        emit: Callable[[Event], None],
    ) -> None:
        self._exchange = exchange
        self._corpus = keeper.corpus
        self._ours = exchange / node_name(keeper.corpus)
        self._registry, self._keeper, self._control = registry, keeper, control
        self._returned, self._render, self._emit = returned, render, emit
        self._claims: dict[str, float] = {}
        self._given: set[str] = set()
        self._ours_told: dict[str, _Told] = {}
        self._heard: dict[Path, _Told] = {}
        self._said = (0, False)
        self._reason = ""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fuzzshard-exchange", daemon=True)

    def start(self) -> None:
        """Takes what the others have, and goes on with that."""
        self._registry.claims = self
        self._look()
        self._thread.start()

    def take(self, signature: str) -> bool:
        """Whether this campaign may work on ``signature``; not while another one does.

        Of two that begin at the same moment the first goes on.
        """
        with self._lock:
            self._given.discard(signature)
            try:
                self._write_state()
                if signature in self._claimed_by_others():
                    return False
                mine = self._claims[signature] = time.time()
                self._write_state()
                other = self._claimed_by_others().get(signature)
            except (OSError, FuzzshardError):
                return True
            if other is not None and other < (mine, self._ours.name):
                del self._claims[signature]
                return False
            return True

    def give(self, signature: str) -> None:
        """The work on ``signature`` is over. The others hear that once they have what came of
        it.
        """
        with self._lock:
            self._given.add(signature)

    def close(self, reason: str) -> None:
        """Tells what is left to tell, and that this campaign has ended; waits no longer for a file
        system that hangs.
        """
        self._reason = reason or "ended"
        self._ended.set()
        self._thread.join(CLOSING_SECONDS)
        self._return(self._registry.elsewhere)

    def _run(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN):
            self._look()
        with self._lock:
            self._given.update(self._claims)
        self._look()

    def _look(self) -> None:
        """One round: tells, takes, and hears who works on what."""
        nodes, learned, problem = self._said[0], list[str](), ""
        with self._lock:
            given = set(self._given)
        try:
            problem = self._hear()
            self._tell()
            self._release(given)
            learned = self._learn()
            self._return(set(self._registry.elsewhere) - set(self._claimed_by_others()))
            nodes = 1 + len(self._living())
            if (stop := self._exchange / STOP_FILE).exists():
                self._control.halt(f"{stop} is there")
        except Exception as error:  # a thread has nobody above it
            problem = str(error) or repr(error)
        if learned or (nodes, bool(problem)) != self._said:
            self._said = (nodes, bool(problem))
            elapsed = self._control.elapsed()
            self._emit(
                Exchanged(nodes=nodes, learned=tuple(learned), problem=problem, elapsed=elapsed)
            )

    def _hear(self) -> str:
        """Reads what others have told since the last round; returns what is wrong with an entry
        that cannot be read.
        """
        problem, heard = "", {}
        for file in self._exchange.glob(f"*/{FINDINGS_FOLDER}/*/{CASE_FILE}"):
            if self._ours not in file.parents:
                try:
                    heard[file] = _read(file, self._heard.get(file))
                except (OSError, InvalidEntry) as error:
                    problem = problem or str(error)
        self._heard = heard
        return problem

    def _tell(self) -> None:
        """Makes the folder of this campaign a copy of what it has found and others have not."""
        theirs = {told.key for told in self._heard.values() if told.is_done}
        here = set()
        for file in (self._corpus / FINDINGS_FOLDER).glob(f"*/{CASE_FILE}"):
            here.add(name := file.parent.name)
            before = self._ours_told.get(name)
            with contextlib.suppress(FileNotFoundError, InvalidEntry):
                told = self._ours_told[name] = _read(file, before)
                target = self._ours / FINDINGS_FOLDER / name
                is_new = told is not before or not target.exists()
                if told.is_ours_to_tell and told.key not in theirs and is_new:
                    _copy(file.parent, target)
        for folder in (self._ours / FINDINGS_FOLDER).glob("*"):
            if folder.name not in here:
                shutil.rmtree(folder)
        if (stats := self._corpus / STATS_FILE).exists():
            write_atomic(self._ours / STATS_FILE, stats.read_bytes())

    def _release(self, given: set[str]) -> None:
        """Gives up the claims whose end the others may hear, and says that this campaign
        lives.
        """
        with self._lock:
            for signature in given & self._given:
                self._claims.pop(signature, None)
                self._given.remove(signature)
            self._write_state()

    def _write_state(self) -> None:
        state = NodeState(
            host=socket.gethostname(),
            pid=os.getpid(),
            corpus=str(self._corpus.resolve()),
            claims=self._claims,
            ended=self._reason,
        )
        write_atomic(self._ours / NODE_FILE, msgspec.json.encode(state) + b"\n")

    def _learn(self) -> list[str]:
        """Takes over what others have finished and this campaign has not; returns where it is
        now.
        """
        learned = []
        for file, told in sorted(self._heard.items()):
            if not told.is_done or self._keeper.has(told.key):
                continue
            entry = read_entry(file)
            if set(entry.preload) <= set(map(str, self._keeper.preload)):
                folder = add(Stored(file, file.parent, entry), self._corpus, self._render)
                self._keeper.learn(folder, entry)
                self._registry.learn(known_of(folder / CASE_FILE, entry))
                learned.append(str(folder))
        return learned

    def _return(self, signatures: Collection[str]) -> None:
        """What waited for the work of others on ``signatures`` is looked at again."""
        for signature in signatures:
            self._returned.extend(self._registry.return_from_elsewhere(signature))

    def _living(self) -> list[tuple[str, NodeState]]:
        """The other campaigns that run, by what the clock of the file system says."""
        now = (self._ours / NODE_FILE).stat().st_mtime
        return [
            (node.name, node.state)
            for node in read_nodes(self._exchange, now)
            if node.name != self._ours.name and node.condition == "running"
        ]

    def _claimed_by_others(self) -> dict[str, tuple[float, str]]:
        """The signatures that others work on: since when, and who; the first where several do."""
        claims: dict[str, tuple[float, str]] = {}
        for name, state in self._living():
            for signature, since in state.claims.items():
                claims[signature] = min((since, name), claims.get(signature, (since, name)))
        return claims


@dataclasses.dataclass(frozen=True)
class _Told:
    """An entry, when its file was ``changed`` last. ``is_done``: nobody works on it any more;
    ``is_ours_to_tell``: it is a finding, and no known bug of torch is its cause.
    """

    changed: int
    key: FindingKey
    is_done: bool
    is_ours_to_tell: bool


def _read(file: Path, before: _Told | None) -> _Told:
    """What ``file`` says; ``before`` where it has not changed since."""
    changed = file.stat().st_mtime_ns
    if before is not None and before.changed == changed:
        return before
    entry = read_entry(file)
    return _Told(
        changed=changed,
        key=finding_key(entry.signature, entry.case),
        is_done=is_done(entry),
        is_ours_to_tell=entry.status.is_finding and not entry.cause,
    )


def is_done(entry: CorpusEntry) -> bool:
    """Whether ``entry`` is a finding that nobody works on any more."""
    has_run = entry.notes.get(SCRIPT_FILE) != NOT_RUN
    return is_confirmed(entry) and not entry.unshrunk and has_run


def is_confirmed(entry: CorpusEntry) -> bool:
    """Whether ``entry`` is a finding that came back on fresh ranks, be it shrunk or not."""
    return entry.status.is_finding and entry.confirmed is not None


def _copy(folder: Path, target: Path) -> None:
    """Copies an entry, its case last: without that it is no entry yet."""
    for file in sorted(folder.iterdir(), key=lambda file: file.name == CASE_FILE):
        if file.is_file() and not file.name.startswith("."):
            write_atomic(target / file.name, file.read_bytes())
