"""Copies of the folders that campaigns tell others in, for nodes that share no file system.

The folder of a node has the form that :mod:`fuzzshard.campaign.exchange` describes, and only its
owner changes it. What has changed there travels as bytes, and is written with the age that it had:
by the age of ``node.json`` everyone judges whether a campaign lives, and clocks differ.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fuzzshard.corpus.files import open_folder, read_regular, remove_below, write_atomic
from fuzzshard.corpus.store import CASE_FILE, FINDINGS_FOLDER, NODE_FILE
from fuzzshard.errors import InvalidMessage

Snapshot = dict[str, tuple[int, int]]
"""The files of a node's folder by their relative paths: the time of the last change in
nanoseconds, and the size.
"""
Change = tuple[float, bytes] | None
"""A file that was changed so many seconds ago and its bytes; None for one that is gone."""
Changes = dict[str, Change]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def snapshot(folder: Path) -> Snapshot:
    """Return the files that a node's ``folder`` has; empty where there is none."""
    found: Snapshot = {}
    for file in (*folder.glob("*"), *folder.glob(f"{FINDINGS_FOLDER}/*/*")):
        with contextlib.suppress(FileNotFoundError):
            name = file.relative_to(folder).as_posix()
            if _is_told(name) and file.is_file() and not file.is_symlink():
                state = file.stat()
                found[name] = (state.st_mtime_ns, state.st_size)
    return found


def changes_since(
    folder: Path, before: Snapshot, complain: Callable[[str], None] = lambda _: None
) -> tuple[Changes, Snapshot]:
    """Return what has changed in a node's ``folder``, and the files that it has now; without
    those that cannot be read, of which ``complain`` is told.
    """
    found, changes = snapshot(folder), Changes()
    for name in found.keys() - before.keys() | {n for n in before if found.get(n) != before[n]}:
        try:
            age = max(0.0, time.time() - found[name][0] / 1e9)
            changes[name] = (age, read_regular(folder / name, below=folder))
        except (KeyError, OSError) as error:
            found.pop(name, None)
            changes[name] = None
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                complain(f"cannot read {folder / name}: {error.strerror}")
    return changes, found


def check_node_name(name: str) -> None:
    """Raises :class:`InvalidMessage` for what cannot be the folder of a node in an exchange."""
    if not _NAME.fullmatch(name):
        raise InvalidMessage(f"{name!r} is no name of a node")


def check_paths(names: Iterable[str]) -> None:
    """Raises :class:`InvalidMessage` for a path that does not lie in the folder of a node."""
    for name in names:
        if not _is_told(name):
            raise InvalidMessage(f"{name!r} is no file of a node")


def apply_changes(folder: Path, changes: Changes) -> None:
    """Makes ``changes`` in a node's ``folder``, and removes each from ``changes`` once it is made.

    The case of an entry is written last and removed first: without it there is no entry. Nothing
    is written if a path is invalid. Raises :class:`InfraError` for a full disk, and for a folder
    that is a link or belongs to somebody else; what is left can be tried again.
    """
    check_paths(changes)
    for name in sorted(changes, key=lambda name: _order(name, changes[name])):
        change, file = changes[name], folder / name
        if change is not None:
            _write(file, *change, below=folder.parent)
        else:
            gone = file.parent if file.name == CASE_FILE else file
            remove_below(gone, below=folder.parent)
        del changes[name]


def _is_told(name: str) -> bool:
    *folders, _ = parts = name.split("/")
    is_in_place = not folders or (len(folders) == 2 and folders[0] == FINDINGS_FOLDER)
    return is_in_place and all(map(_NAME.fullmatch, parts))


def _order(name: str, change: Change) -> tuple[int, str]:
    if not name.endswith(f"/{CASE_FILE}"):
        return 1, name
    return (0 if change is None else 2), name


def _write(file: Path, age: float, data: bytes, *, below: Path) -> None:
    with contextlib.suppress(OSError):
        if file.name != NODE_FILE and read_regular(file, below=below) == data:
            return
    write_atomic(file, data, below=below)
    then = time.time() - age
    with contextlib.suppress(FileNotFoundError), open_folder(file.parent, below=below) as folder:
        os.utime(file.name, (then, then), dir_fd=folder, follow_symlinks=False)
