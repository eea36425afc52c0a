"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from fuzzshard.errors import InfraError


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces ``path`` with ``data`` and creates its folder; a reader, or a power cut, never sees
    half.

    Raises :class:`InfraError` for a full disk or a folder that cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space" if is_full else "choose another place"
        raise InfraError(f"cannot write {path}: {error.strerror}", remedy) from None


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
