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
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from fuzzshard.campaign.backlog import Backlog
from fuzzshard.campaign.control import Control
from fuzzshard.campaign.finding_store import FindingStore, is_in_work
from fuzzshard.campaign.known import Registry, known_of
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.distinct import FindingKey, finding_key
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.files import open_folder, read_regular, remove_below, write_atomic
from fuzzshard.corpus.gather import add, read_foreign
from fuzzshard.corpus.scripts import ScriptRender
from fuzzshard.corpus.store import (
    CASE_FILE,
    FINDINGS_FOLDER,
    NODE_FILE,
    STATS_FILE,
)
from fuzzshard.errors import InfraError, InvalidEntry, UsageError
from fuzzshard.events import Event, Exchanged

STOP_FILE = "stop"
SECONDS_BETWEEN = 10.0
"""How often a campaign looks what the others have."""
GLANCE_SECONDS = 3.0
"""How often it looks what they work on."""
STARTING_SECONDS = 60.0
CLOSING_SECONDS = 10.0
"""How long a campaign waits for the exchange when it begins, and at the end."""
SILENT_SECONDS = 120.0
"""A campaign that has not written its file for as long is lost, and what it worked on is free."""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign, as it tells the others. ``claims`` are the signatures that it works on;
    ``ended`` is why it ended.
    """

    host: str
    pid: int
    corpus: str
    claims: tuple[str, ...] = ()
    ended: str = ""


def node_name(corpus: Path) -> str:
    """Return the name of the campaign in ``corpus`` on this machine, also when it is continued."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    machine = b""  # two machines may have one host name
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_bytes()
    return f"{host}-{sha256(machine + bytes(corpus.resolve())).hexdigest()[:8]}"


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
        """Tell whether the campaign runs, has ended, or is lost: it has not ended, and has written
        nothing for :data:`SILENT_SECONDS`.
        """
        if self.state.ended:
            return "ended"
        return "running" if self.silent < SILENT_SECONDS else "lost"


def read_nodes(
    exchange: Path, now: float, complain: Callable[[str], None] = lambda _: None
) -> list[NodeSeen]:
    """Return all campaigns that took part, by name; without those whose files cannot be read, of
    which ``complain`` is told.

    ``now`` is by the clock of the file system, which files written there tell: clocks of nodes
    differ.
    """
    nodes = []
    for file in sorted(exchange.glob(f"*/{NODE_FILE}")):
        try:
            data = read_regular(file, below=exchange)
            state = msgspec.json.decode(data, type=NodeState)
            nodes.append(NodeSeen(file.parent, state, max(0.0, now - file.stat().st_mtime)))
        except OSError as error:
            complain(f"cannot read {file}: {error.strerror}")
        except ValueError as error:
            complain(f"{file} is no file of a campaign: {error}")
    return nodes


class Exchange:
    """The part of one campaign that talks with the others; any thread may use it.

    Only a thread of its own reads and writes files, so a file system that hangs delays nobody for
    long. An ``exchange`` that is not there, full or read-only ends nothing: it is said once, and
    what is found goes there when it is back. Findings that waited for another campaign go to the
    ``backlog``.
    """

    def __init__(
        self,
        exchange: Path,
        *,
        registry: Registry,
        store: FindingStore,
        control: Control,
        backlog: Backlog,
        render: ScriptRender,
        emit: Callable[[Event], None],
    ) -> None:
        self._exchange = exchange
        self._corpus = store.corpus
        self._ours = exchange / node_name(store.corpus)
        self._registry, self._store, self._control = registry, store, control
        self._backlog, self._render, self._emit = backlog, render, emit
        self._lock = threading.Lock()
        """Guards the claims."""
        self._claims: set[str] = set()
        self._given: set[str] = set()
        """Those of the claims whose work is over, and whose end is not told yet."""
        self._reason = ""
        self._has_news = threading.Event()
        """There is a new claim, or a reason to end."""
        self._at_home: dict[Path, _Told] = {}
        self._heard: dict[Path, _Told] = {}
        self._place = (0, 0)
        self._copied: set[str] = set()
        """The names of what this session has put into the folder of this campaign."""
        self._others: Collection[NodeSeen] = ()
        """The other campaigns that run, as far as is known."""
        self._seen = time.monotonic()
        """When that was looked up last."""
        self._problems: list[str] = []
        self._bad: set[str] = set()
        """What is wrong with files of others."""
        self._said = (0, False)
        self._said_bad: set[str] = set()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fuzzshard-exchange", daemon=True)

    def start(self) -> None:
        """Takes what the others have, and goes on with that; without it where it takes too
        long.
        """
        self._registry.claims = self
        self._thread.start()
        self._first.wait(STARTING_SECONDS)

    def take(self, signature: str) -> bool:
        """Return whether this campaign may work on ``signature``: not while another one does, as
        far as has been heard. Two that find the same within seconds may both work on it.
        """
        with self._lock:
            self._given.discard(signature)
            is_theirs = any(signature in node.state.claims for node in self._others)
            if is_theirs and signature not in self._claims:
                return False
            self._claims.add(signature)
        self._has_news.set()
        return True

    def give(self, signature: str) -> None:
        """Note that work on ``signature`` is over. The others hear that once they have what came
        of it.
        """
        with self._lock:
            self._given.add(signature)

    def close(self, reason: str) -> None:
        """Tells what is left to tell, and that this campaign has ended; waits no longer for a file
        system that hangs.
        """
        self._reason = reason or "ended"
        self._has_news.set()
        if self._thread.is_alive():
            self._thread.join(CLOSING_SECONDS)
        self._return(self._registry.elsewhere)

    def tell_last_figures(self) -> None:
        """Tells the figures of a campaign whose last event is over, which comes after
        :meth:`close`.
        """
        if not self._thread.is_alive():  # else the file system hangs
            telling = threading.Thread(target=self._tell_figures, daemon=True)
            telling.start()
            telling.join(CLOSING_SECONDS)

    def _run(self) -> None:
        self._look()
        self._first.set()
        looked = time.monotonic()
        while not self._reason:
            pause = max(0.0, looked + SECONDS_BETWEEN - time.monotonic())
            has_news = self._has_news.wait(min(pause, GLANCE_SECONDS) if self._others else pause)
            self._has_news.clear()
            if self._reason:
                break
            if looked + SECONDS_BETWEEN <= time.monotonic():
                self._look()
                looked = time.monotonic()
                continue
            with self._trying():
                if has_news:
                    self._write_state()
                self._look_around()
        self._problems.clear()
        with self._trying():
            self._be_there()
            self._tell()
            self._write_state()
        if self._problems:
            self._say([])

    def _look(self) -> None:
        """One round: hears who works on what, tells, and takes. Where one thing cannot be done the
        others are.
        """
        self._problems.clear()
        learned: list[str] = []
        with self._lock:
            given = frozenset(self._given)
        with self._trying():
            if (stop := self._exchange / STOP_FILE).exists():
                self._control.halt(f"{stop} is there")
        waiting = set(self._registry.elsewhere)
        is_there = False
        with self._trying():
            self._be_there()
            is_there = True
            self._write_state()
            self._look_around()
        if time.monotonic() - self._seen > SILENT_SECONDS:
            self._others = ()
        # Who has given a claim up by now has told what came of it, which is heard next.
        waiting -= {signature for node in self._others for signature in node.state.claims}
        if is_there:
            with self._trying():
                self._hear()
            with self._trying():
                if self._tell():
                    self._release(given)
            self._learn(learned)
        self._return(waiting)
        self._say(learned)

    def _be_there(self) -> None:
        """Makes the folder of this campaign; where it is another one than before, as after a
        mount, nothing is told there yet.
        """
        try:
            with open_folder(self._ours, below=self._exchange, make=True) as handle:
                folder = os.fstat(handle)
        except OSError as error:
            raise InfraError(
                f"cannot write in {self._ours}: {error.strerror}",
                "check the permissions and the space of the exchange",
            ) from None
        if self._place != (folder.st_dev, folder.st_ino):
            self._place = (folder.st_dev, folder.st_ino)
            self._copied.clear()

    def _complain(self, problem: str) -> None:
        """Keeps what is wrong with a file of somebody else, to be said once."""
        self._bad.add(problem)

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Keeps what goes wrong within, to be said, and goes on."""
        try:
            yield
        except InvalidEntry as error:
            self._complain(str(error))
        except Exception as error:  # a thread has nobody above it
            self._problems.append(str(error) or repr(error))

    def _say(self, learned: Collection[str]) -> None:
        said = (1 + len(self._others), bool(self._problems))
        is_new = said != self._said
        problems = [*self._problems[: int(is_new)], *self._bad.difference(self._said_bad)]
        if not (learned or problems or is_new):
            return
        self._said, self._said_bad = said, set(self._bad)
        for problem in problems or [""]:
            self._emit(
                Exchanged(
                    nodes=said[0],
                    learned=tuple(learned),
                    problem=problem,
                    elapsed=self._control.elapsed(),
                )
            )
            learned = ()

    def _hear(self) -> None:
        """Reads what others have told since the last round, and what this campaign told before it
        lost its corpus.
        """
        heard = {}
        for file in self._exchange.glob(f"*/{FINDINGS_FOLDER}/*/{CASE_FILE}"):
            at_home = self._corpus / FINDINGS_FOLDER / file.parent.name / CASE_FILE
            if self._ours not in file.parents or not at_home.exists():
                with self._trying():
                    heard[file] = _read(file, self._heard.get(file), self._exchange)
        self._heard = heard

    def _tell(self) -> bool:
        """Makes the folder of this campaign a copy of what it has found and others have not;
        whether all of that went well.
        """
        theirs = {told.key for told in self._heard.values() if told.is_done}
        before, self._at_home = self._at_home, {}
        problems, names = len(self._problems), set()
        for file in (self._corpus / FINDINGS_FOLDER).glob(f"*/{CASE_FILE}"):
            names.add(name := file.parent.name)
            with self._trying(), contextlib.suppress(FileNotFoundError, InvalidEntry):
                told = _read(file, before.get(file), self._corpus)
                is_known = told.key in theirs and name not in self._copied
                is_new = told is not before.get(file) or name not in self._copied
                if told.is_ours_to_tell and not is_known and is_new:
                    self._copy(file.parent, self._ours / FINDINGS_FOLDER / name)
                    self._copied.add(name)
                self._at_home[file] = told
        for name in self._copied - names:
            with self._trying():
                remove_below(self._ours / FINDINGS_FOLDER / name, below=self._exchange)
                self._copied.remove(name)
        self._tell_figures()
        return len(self._problems) == problems

    def _tell_figures(self) -> None:
        if (stats := self._corpus / STATS_FILE).exists():
            with self._trying():
                write_atomic(self._ours / STATS_FILE, stats.read_bytes(), below=self._exchange)

    def _copy(self, folder: Path, target: Path) -> None:
        """Copies an entry, its case last: without that it is no entry yet."""
        for file in sorted(folder.iterdir(), key=lambda file: file.name == CASE_FILE):
            if file.is_file() and not file.is_symlink() and not file.name.startswith("."):
                data = read_regular(file, below=self._corpus)
                write_atomic(target / file.name, data, below=self._exchange)

    def _release(self, given: Collection[str]) -> None:
        """Gives up the claims whose end the others may hear."""
        with self._lock:
            over = self._given.intersection(given)
            self._claims -= over
            self._given -= over
        if over:
            self._write_state()

    def _write_state(self) -> None:
        """Says that this campaign lives, and what it works on."""
        with self._lock:
            claims, reason = tuple(sorted(self._claims)), self._reason
        state = NodeState(
            host=socket.gethostname(),
            pid=os.getpid(),
            corpus=str(self._corpus.resolve()),
            claims=() if reason else claims,
            ended=reason,
        )
        data = msgspec.json.encode(state) + b"\n"
        write_atomic(self._ours / NODE_FILE, data, below=self._exchange)

    def _learn(self, learned: list[str]) -> None:
        """Takes over what others have finished and this campaign has not; ``learned`` gets where
        it is now.
        """
        for file, told in sorted(self._heard.items()):
            usable = told.is_done and told.preload <= set(map(str, self._store.preload))
            if usable and not self._store.has(told.key):
                with self._trying():
                    item = read_foreign(file, self._exchange)
                    folder = add(item, self._corpus, self._render)
                    self._store.learn(folder, item.entry)
                    self._registry.learn(known_of(folder / CASE_FILE, item.entry))
                    learned.append(str(folder))

    def _return(self, signatures: Collection[str]) -> None:
        """What waited for the work of others on ``signatures`` is looked at again."""
        for signature in signatures:
            self._backlog.put(*self._registry.return_from_elsewhere(signature))

    def _look_around(self) -> None:
        """Reads which other campaigns run, by what the clock of the file system says."""
        now = (self._ours / NODE_FILE).stat().st_mtime
        self._others = [
            node
            for node in read_nodes(self._exchange, now, self._complain)
            if node.name != self._ours.name and node.condition == "running"
        ]
        self._seen = time.monotonic()


@dataclasses.dataclass(frozen=True)
class _Told:
    """An entry, when its file was ``changed`` last. ``is_done``: nobody works on it any more;
    ``is_ours_to_tell``: it is a finding, and no known bug of torch is its cause.
    """

    changed: int
    key: FindingKey
    preload: frozenset[str]
    is_done: bool
    is_ours_to_tell: bool


def _read(file: Path, before: _Told | None, below: Path) -> _Told:
    """Return what ``file`` says, in which no link under ``below`` is followed; ``before`` where it
    has not changed since.
    """
    changed = file.stat().st_mtime_ns
    if before is not None and before.changed == changed:
        return before
    entry = read_entry(file, below=below)
    return _Told(
        changed=changed,
        key=finding_key(entry.signature, entry.case),
        preload=frozenset(entry.preload),
        is_done=is_done(entry),
        is_ours_to_tell=entry.status.is_finding and not entry.cause,
    )


def is_done(entry: CorpusEntry) -> bool:
    """Return whether ``entry`` is a finding that nobody works on any more."""
    return entry.is_confirmed and bool(entry.signature) and not is_in_work(entry)
