"""Folders below one that others write to as well: none of them may be a link.

A path says each time anew where it leads, and a neighbour may change that in between. A handle of
a folder stays with that very folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def open_folder(
    folder: Path, *, below: Path | None = None, make: bool = False, mode: int = 0o777
) -> Iterator[int]:
    """Open ``folder``, and the folders between it and ``below``, of which none may be a link.

    With ``make``, what is missing of them is created with ``mode``, and they must belong to this
    user: whoever owns a folder decides where a write in there goes. Raises :class:`OSError`, whose
    ``strerror`` names the folder that is at fault.
    """
    here = folder if below is None else below
    if make and below is None:
        folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(here, _FOLDER)
    try:
        for name in folder.relative_to(here).parts:
            here /= name
            outer, handle = handle, _open_inner(handle, here, mode if make else None)
            os.close(outer)
            if make:
                _check_ours(handle, here)
        yield handle
    finally:
        os.close(handle)


def remove_below(path: Path, *, below: Path) -> None:
    """Remove a file, a link or a folder with all that it holds; it may be gone already."""
    with contextlib.suppress(FileNotFoundError), open_folder(path.parent, below=below) as folder:
        try:
            os.unlink(path.name, dir_fd=folder)
        except IsADirectoryError:
            shutil.rmtree(path.name, dir_fd=folder)


def _open_inner(outer: int, path: Path, mode: int | None) -> int:
    if mode is not None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, mode, dir_fd=outer)
    try:
        return os.open(path.name, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            what = "a symbolic link" if path.is_symlink() else "not a folder"
            raise OSError(errno.ENOTDIR, f"{path} is {what}", str(path)) from None
        raise


def _check_ours(folder: int, path: Path) -> None:
    """Raises :class:`OSError` for a folder of somebody else.

    Some file systems of a network give all that a user makes to another one.
    """
    owner = os.fstat(folder).st_uid
    if owner == os.geteuid():
        return
    name = f".{secrets.token_hex(8)}.tmp"
    made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=folder)
    try:
        ours = os.fstat(made).st_uid
    finally:
        os.close(made)
        os.unlink(name, dir_fd=folder)
    if owner != ours:
        raise OSError(errno.EPERM, f"{path} belongs to another user", str(path))
