"""The lock of a campaign's folder."""

from __future__ import annotations

import resource
from pathlib import Path

from fuzzshard.journal.lock import LOCK_FILE, locked


def test_a_disk_without_room_for_who_has_the_lock_takes_the_lock(tmp_path: Path) -> None:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, usual[1]))
    try:
        with locked(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (tmp_path / LOCK_FILE).read_text() == ""
