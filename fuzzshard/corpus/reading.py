"""Reading files that others may have put there: regular ones only, up to a number of bytes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 16 * 2**20
"""The largest entry that was ever saved has a hundredth of it."""


def read_regular(path: Path, *, most: int = MOST_BYTES, follow: bool = True) -> bytes:
    """Return what is in the file ``path``, which has at most ``most`` bytes.

    Neither a device nor a pipe makes it wait or fill memory. With ``follow`` off, a link is an
    error too. Raises :class:`OSError`, whose ``strerror`` says why in one line.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    except ValueError:  # a path with a null character
        raise OSError(errno.EINVAL, "it is not a path", str(path)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with os.fdopen(handle, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return data
