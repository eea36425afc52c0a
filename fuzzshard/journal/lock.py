"""One campaign at a time in a directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from fuzzshard.errors import InfraError, UsageError

LOCK_FILE = "journal.lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of ``folder``, which is created; the kernel releases it however its owner
    ends.

    Raises :class:`UsageError` where another process has it, and :class:`InfraError` where there
    can be none.
    """
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)  # what a full disk refuses does not wait for close
    except OSError as error:
        raise InfraError(
            f"cannot write in {folder}: {error.strerror}",
            "allow writing there or use another --corpus",
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UsageError(
                f"another campaign runs in {folder}: "
                f"{file.read().decode().strip() or 'its process is starting'}",
                "wait for it, stop it, or use another --corpus",
            ) from None
        except OSError as error:
            raise InfraError(
                f"cannot lock {path}: {error.strerror}", "use a --corpus on a local file system"
            ) from None
        with contextlib.suppress(
            OSError
        ):  # who has it is a courtesy, and takes a block of a full disk
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
