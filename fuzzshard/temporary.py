"""Temporary folders that go away with their process, also if that was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

PREFIX = "fuzzshard-tmp-"


class TemporaryFolder:
    """A new folder, which is locked for as long as this process lives and does not remove it.

    So what the next campaign can lock is left over, and :func:`remove_abandoned` removes it.
    """

    def __init__(self) -> None:
        self.path, self._lock = _make()

    def remove(self) -> None:
        """Remove the folder with all that it holds; it may be gone already."""
        lock, self._lock = self._lock, None  # another thread may be removing it
        if lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def remove_abandoned() -> None:
    """Remove the temporary folders of this user whose processes have been killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it lives, it is gone, or nothing can be locked here
            handle = _open(path)
            try:
                if os.fstat(handle).st_uid == os.geteuid():
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def _make() -> tuple[Path, int | None]:
    """A folder and its lock. Before it is locked, somebody may take it for an abandoned one."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        with contextlib.suppress(FileNotFoundError):
            handle = _open(path)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            except OSError:
                return path, handle  # a file system without locks, from which nothing is removed
            if path.exists():
                return path, handle
            os.close(handle)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def cache_folder(name: str) -> Path:
    """Return the folder ``name`` of fuzzshard, below the XDG cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "fuzzshard" / name
