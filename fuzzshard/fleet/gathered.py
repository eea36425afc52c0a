"""What the nodes of a fleet have told the head: kept for the other nodes, saved and merged.

::

    CORPUS/findings/             the best case of each finding of all nodes
    CORPUS/fleet/                an exchange, as every node would see it
    CORPUS/fleet/fleet.json      the name of the fleet's folders on nodes
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from fuzzshard.analysis.features import features
from fuzzshard.campaign.exchange import is_done
from fuzzshard.corpus.distinct import Stored, merge_annotations
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.gather import load, merge, read_foreign
from fuzzshard.corpus.scripts import ScriptRender, script_of
from fuzzshard.corpus.store import (
    CASE_FILE,
    FINDINGS_FOLDER,
    FLEET_FOLDER,
    save_shrunk,
    saved_script,
)
from fuzzshard.errors import FuzzshardError, InfraError, InvalidEntry
from fuzzshard.fleet.mirror import Changes, apply_changes, changes_since, check_paths

CORPUS_NAME = "corpus"
"""The folder in which nodes find what the corpus had before, as if a node had told it."""
FLEET_FILE = "fleet.json"


class FleetState(msgspec.Struct, frozen=True):
    """``campaign`` is the folder of this fleet in the ``--local`` of each node."""

    campaign: str


class Gathered:
    """What all nodes have told so far, in memory and in ``corpus``.

    A full disk ends nothing: it is said once, and what could not be saved is tried again.
    ``is_new`` says whether a finding came that the corpus did not have.
    """

    def __init__(self, corpus: Path, render: ScriptRender, say: Callable[[str], None]) -> None:
        self._corpus, self._fleet = corpus, corpus / FLEET_FOLDER
        self._render, self._say = render, say
        self._log: dict[tuple[str, str], tuple[int, float, bytes | None]] = {}
        self._numbers = itertools.count(1)
        self._unsaved: dict[str, set[str]] = {}
        self._unmerged: set[Path] = set()
        self._problem = ""
        self._told_problems: set[str] = set()
        self.is_new = False
        for folder in sorted(self._fleet.iterdir()):
            if folder.is_dir() and not folder.is_symlink():
                self._note(folder.name, changes_since(folder, {}, say)[0])
        self._unsaved.clear()
        had, _ = changes_since(corpus, {}, say)
        findings = {p: c for p, c in had.items() if p.startswith(f"{FINDINGS_FOLDER}/")}
        for path, change in findings.items():
            self._put(CORPUS_NAME, path, change)

    @property
    def has_nodes(self) -> bool:
        """Whether any node has told anything, to this head or to an earlier one."""
        return any(name != CORPUS_NAME for name, _ in self._log)

    def take(self, name: str, changes: Changes, *, is_all: bool) -> None:
        """Take what the node ``name`` has told; with ``is_all``, it has nothing else any more.

        Raises :class:`InvalidMessage` for a path that is not in its folder.
        """
        check_paths(changes)
        if is_all:
            self._note(name, {p: None for p in self._paths(name) if p not in changes})
        self._note(name, changes)

    def begin(self, name: str) -> None:
        """A campaign of this ``name`` begins without a past: what an earlier one of the same name
        has told, on a disk that is gone, is kept under another name.
        """
        if paths := self._paths(name):
            aside = next(n for i in itertools.count(1) if not self._paths(n := f"{name}.{i}"))
            told = {path: self._change(name, path) for path in paths}
            self._note(aside, told)
            self._note(name, dict.fromkeys(paths))

    def since(self, position: int, but: str) -> tuple[dict[str, Changes], int]:
        """Return what nodes ``but`` one have told since ``position``, and the position now."""
        told: dict[str, Changes] = {}
        newest = position
        for (name, path), (number, _, _) in reversed(self._log.items()):
            if number <= position:
                break
            newest = max(newest, number)
            if name != but:
                told.setdefault(name, {})[path] = self._change(name, path)
        return told, newest

    def save(self) -> None:
        """Write what is not on disk yet, and merge the findings that are finished."""
        self._trying(self._save)

    def finish(self) -> None:
        """Merge also what is confirmed and not finished, unless the corpus has its finding."""
        self._trying(self._finish)

    def check_saved(self) -> None:
        """Raises :class:`InfraError` where something that nodes told is not on disk."""
        if self._problem:
            raise InfraError(
                f"not all is saved: {self._problem}",
                "the nodes have it, and tell it again when the same command goes on",
            )

    def _trying(self, step: Callable[[], None]) -> None:
        problem = ""
        try:
            step()
        except (FuzzshardError, OSError) as error:
            problem = str(error)
        if problem != self._problem:
            self._say(f"{problem}; the fleet goes on" if problem else "writing works again")
            self._problem = problem

    def _note(self, name: str, changes: Changes) -> None:
        for path, change in changes.items():
            self._put(name, path, change)
            self._unsaved.setdefault(name, set()).add(path)
            if change is not None and path.endswith(f"/{CASE_FILE}"):
                self._unmerged.add(self._fleet / name / path)

    def _put(self, name: str, path: str, change: tuple[float, bytes] | None) -> None:
        age, data = (0.0, None) if change is None else change
        self._log.pop((name, path), None)
        self._log[name, path] = (next(self._numbers), time.time() - age, data)

    def _change(self, name: str, path: str) -> tuple[float, bytes] | None:
        _, then, data = self._log[name, path]
        return None if data is None else (max(0.0, time.time() - then), data)

    def _paths(self, name: str) -> list[str]:
        return [p for (n, p), (_, _, data) in self._log.items() if n == name and data is not None]

    def _save(self) -> None:
        for name, paths in list(self._unsaved.items()):
            changes = {path: self._change(name, path) for path in paths}
            try:
                apply_changes(self._fleet / name, changes)
            finally:
                self._unsaved[name] = set(changes)
            del self._unsaved[name]
        done = list(self._entries(self._unmerged, is_done))
        if done:
            self._merge(done)
        self._unmerged.clear()

    def _finish(self) -> None:
        self._save()
        self._merge_unfinished()

    def _merge_unfinished(self) -> None:
        files = self._fleet.glob(f"*/{FINDINGS_FOLDER}/*/{CASE_FILE}")
        had = [item.entry for item in load([self._corpus])[0]]
        known = [(entry.signature, features(entry.case)) for entry in had]
        left = [
            item
            for item in self._entries(files, lambda entry: entry.is_confirmed)
            if not any(
                item.entry.signature == signature and needed <= features(item.entry.case)
                for signature, needed in known
            )
        ]
        if left:
            self._merge(left)

    def _merge(self, items: list[Stored]) -> None:
        target, _ = load([self._corpus])
        for item in items:
            for ours in target:
                if ours.entry.unshrunk and ours.file.parent.name == item.file.parent.name:
                    entry = merge_annotations(item.entry, ours.entry)
                    script = saved_script(item.file) or script_of(entry, self._render)
                    save_shrunk(ours.file.parent, entry, script)
        target, _ = load([self._corpus])
        added: list[Path] = []
        for what, path in merge(items, target, self._corpus, self._render):
            if what == "added":
                added.append(path)
            elif what == "replaced":
                self._say(f"{added.pop()} replaces {path.parent}, a larger case")
        for path in added:
            self.is_new = True
            self._say(f"new finding: {path}")

    def _entries(self, files: Iterable[Path], wanted: Callable[..., bool]) -> Iterator[Stored]:
        """The entries that are ``wanted``; says once of each file what is wrong with it."""
        for file in sorted(files):
            try:
                item = read_foreign(file, self._fleet)
            except (InvalidEntry, OSError) as error:
                if file.exists() and str(error) not in self._told_problems:
                    self._told_problems.add(str(error))
                    self._say(str(error))
                continue
            if wanted(item.entry):
                yield item


def campaign_of(corpus: Path) -> str:
    """Return the name of the fleet in ``corpus``, the same when it is continued; makes one up."""
    file = corpus / FLEET_FOLDER / FLEET_FILE
    if not file.exists():
        state = FleetState(secrets.token_hex(8))
        write_atomic(file, msgspec.json.encode(state) + b"\n")
    try:
        return msgspec.json.decode(file.read_bytes(), type=FleetState).campaign
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidEntry(f"{file} cannot be read: {error}", "remove it") from None
