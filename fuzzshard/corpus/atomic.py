"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

from fuzzshard.corpus.beneath import open_folder
from fuzzshard.errors import InfraError


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
