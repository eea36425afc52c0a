"""Reading files that others may have put there: regular ones only, up to a number of bytes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from fuzzshard.corpus.beneath import open_folder

MOST_BYTES = 16 * 2**20
"""The largest entry that was ever saved has a hundredth of it."""


def read_regular(
    path: Path, *, most: int = MOST_BYTES, follow: bool = True, below: Path | None = None
) -> bytes:
    """Return what is in the file ``path``, which has at most ``most`` bytes.

    Neither a device nor a pipe makes it wait or fill memory. With ``follow`` off, a link is an
    error too; where others write to ``below``, so is every link under that. Raises
    :class:`OSError`, whose ``strerror`` says why in one line.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        if below is None:
            handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
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
