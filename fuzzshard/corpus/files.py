"""Files and folders that others may have put there, and files that are either whole or not there.

A path says each time anew where it leads, and a neighbour may change that in between. A handle of
a folder stays with that very folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from fuzzshard.errors import InfraError

MOST_BYTES = 16 * 2**20
"""The largest entry that was ever saved has a hundredth of it."""


def read_regular(path: Path, *, most: int = MOST_BYTES, below: Path | None = None) -> bytes:
    """Return what is in the file ``path``, which has at most ``most`` bytes.

    Neither a device nor a pipe makes it wait or fill memory. Where others write to
    ``below``, every link under that is an error too. Raises
    :class:`OSError`, whose ``strerror`` says why in one line.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        if below is None:
            handle = os.open(path, flags)
        else:
            with open_folder(path.parent, below=below) as folder:
                handle = os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    except ValueError:  # a path with a null character
        raise OSError(errno.EINVAL, "it is not a path", str(path)) from None
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with os.fdopen(handle, "rb") as file:
        data = b"" if state.st_size > most else file.read(most + 1)
    if max(state.st_size, len(data)) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return data


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


def write_atomic(path: Path, data: bytes, *, below: Path | None = None) -> None:
    """Replaces ``path`` with ``data`` and creates its folder; a reader, or a power cut, never sees
    half.

    Where others write to ``below`` too, no folder under it may be a link or belong to somebody
    else. Raises :class:`InfraError` for such a folder, for a full disk, or a folder that cannot be
    written.
    """
    temporary = f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp"
    try:
        with open_folder(path.parent, below=below, make=True) as folder:
            _unlink(temporary, folder)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                handle = os.open(temporary, flags, 0o666, dir_fd=folder)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                _unlink(temporary, folder)
            os.fsync(folder)  # a rename survives a power cut only once its folder is on disk
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space" if is_full else "choose another place"
        raise InfraError(f"cannot write {path}: {error.strerror}", remedy) from None


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
