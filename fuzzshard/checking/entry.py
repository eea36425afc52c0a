"""A saved finding around a model of the user's own: a folder with ``subject.json``.

It names functions of the user's. ``fuzzshard check --again`` imports and runs them, and so do
``fuzzshard replay --allow-user-code`` and pytest with ``--fuzzshard-allow-user-code``; whatever
else reads a corpus leaves such a file alone.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import msgspec

from fuzzshard.checking.report import TrainingReport
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.reading import read_regular
from fuzzshard.corpus.store import SCRIPT_FILE, SUBJECT_FILE
from fuzzshard.errors import InvalidEntry
from fuzzshard.subject.subject import Subject

FORMAT = 1


class SubjectEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is saved; ``shrunk`` says that the training is as small as it became."""

    format: int = FORMAT
    subject: Subject
    report: TrainingReport
    preload: tuple[str, ...] = ()
    torch: str = ""
    shrunk: bool = True


def save(corpus: Path, entry: SubjectEntry, script: str = "") -> Path:
    """Write an entry into a folder of its own below ``corpus``, and return the folder.

    A ``script`` that shows the finding lies beside it. Raises :class:`InfraError` where nothing
    can be written.
    """
    signature = entry.report.signature
    name = re.sub(r"[^a-z0-9]+", "-", signature.lower()).strip("-")[:60]
    key = zlib.crc32(f"{entry.subject.build} {signature}".encode())
    folder = corpus / "own" / f"{name}-{key:08x}"
    if script:
        write_atomic(folder / SCRIPT_FILE, script.encode())
    text = msgspec.json.format(msgspec.json.encode(entry), indent=2) + b"\n"
    write_atomic(folder / SUBJECT_FILE, text)
    return folder


def load(path: Path) -> SubjectEntry:
    """Read an entry, from its folder or its file; raises :class:`InvalidEntry`."""
    file = path / SUBJECT_FILE if path.is_dir() else path
    try:
        entry = msgspec.json.decode(read_regular(file), type=SubjectEntry)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidEntry(
            f"{file} is no saved finding of fuzzshard check: {reason}", "check the path"
        ) from error
    if entry.format > FORMAT:
        raise InvalidEntry(f"{file} has format {entry.format}", "use a newer fuzzshard")
    return entry
