"""What the nodes of a fleet have told the head: saved, told to the other nodes and merged.

::

    CORPUS/findings/             the best case of each finding of all nodes
    CORPUS/fleet/                an exchange, as every node would see it
    CORPUS/fleet/fleet.json      the name of the fleet's folders on nodes
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from fuzzshard.fleet.mirror import (
    Changes,
    Snapshot,
    apply_changes,
    changes_since,
    check_paths,
    snapshot,
)

CORPUS_NAME = "corpus"
"""The folder in which nodes find what the corpus had before, as if a node had told it."""
FLEET_FILE = "fleet.json"


class FleetState(msgspec.Struct, frozen=True):
    """``campaign`` is the folder of this fleet in the ``--local`` of each node."""

    campaign: str


class Gathered:
    """What all nodes have told so far, in ``corpus``.

    A full disk ends nothing: it is said once, and what could not be saved is tried again.
    ``is_new`` says whether a finding came that the corpus did not have.
    """

    def __init__(self, corpus: Path, render: ScriptRender, say: Callable[[str], None]) -> None:
        self._corpus, self._fleet = corpus, corpus / FLEET_FOLDER
        self._render, self._say = render, say
        self._unsaved: dict[str, Changes] = {}
        self._unmerged = set(self._fleet.glob(f"*/{FINDINGS_FOLDER}/*/{CASE_FILE}"))
        self._problem = ""
        self._told_problems: set[str] = set()
        self.is_new = False
        had, _ = changes_since(corpus, {}, say)
        self._had = {p: c for p, c in had.items() if p.startswith(f"{FINDINGS_FOLDER}/")}

    @property
    def has_nodes(self) -> bool:
        """Whether any node has told anything, to this head or to an earlier one."""
        return bool(self._unsaved or self._folders())

    def take(self, name: str, changes: Changes, *, is_all: bool) -> None:
        """Take what the node ``name`` has told; with ``is_all``, it has nothing else any more.

        Raises :class:`InvalidMessage` for a path that is not in its folder.
        """
        check_paths(changes)
        if is_all:
            self._unsaved[name] = dict.fromkeys(snapshot(self._fleet / name))
        self._unsaved.setdefault(name, {}).update(changes)

    def begin(self, name: str) -> None:
        """Begin a campaign of this ``name`` without a past: what an earlier one of the same name
        has told, on a disk that is gone, is kept under another name.
        """
        folder = self._fleet / name
        if folder.exists():
            others = (self._fleet / f"{name}.{i}" for i in itertools.count(1))
            folder.rename(next(other for other in others if not other.exists()))

    def since(
        self, before: Mapping[str, Snapshot] | None, but: str
    ) -> tuple[dict[str, Changes], dict[str, Snapshot]]:
        """Return what nodes ``but`` one have told, and what there is now; without what was there
        ``before``, and with what the corpus had where that is None.
        """
        told = {CORPUS_NAME: self._had} if before is None and self._had else {}
        now: dict[str, Snapshot] = {}
        for folder in self._folders():
            if folder.name != but:
                had = (before or {}).get(folder.name, {})
                changes, now[folder.name] = changes_since(folder, had)
                told |= {folder.name: changes} if changes else {}
        return told, now

    def _folders(self) -> list[Path]:
        """Return those of nodes."""
        return [path for path in self._fleet.glob("*/") if not path.is_symlink()]

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

    def _save(self) -> None:
        for name, changes in list(self._unsaved.items()):
            folder = self._fleet / name
            written = (folder / path for path, change in changes.items() if change is not None)
            self._unmerged.update(file for file in written if file.name == CASE_FILE)
            apply_changes(folder, changes)
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
        """Yield the entries that are ``wanted``; says once of each file what is wrong with it."""
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
