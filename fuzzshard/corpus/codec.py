"""Corpus entries as JSON: one writer, a reader for every version there ever was, a checksum."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import InvalidVersion

from fuzzshard.case import codec
from fuzzshard.case.edit import with_reshards
from fuzzshard.case.schedule_state import lacking_reshards
from fuzzshard.case.validate import validate
from fuzzshard.corpus.entry import FORMAT, CorpusEntry, bare_entry, new_lifecycle
from fuzzshard.corpus.expectation import with_versions
from fuzzshard.corpus.lifecycle import release
from fuzzshard.corpus.reading import read_regular
from fuzzshard.errors import FuzzshardError, InvalidEntry


def encode_entry(entry: CorpusEntry) -> bytes:
    """Indented JSON with a final newline: made to be read and to be reviewed as a diff."""
    fields = msgspec.to_builtins(entry)
    data = msgspec.json.encode({**fields, "checksum": _checksum(fields)})
    return msgspec.json.format(data, indent=2) + b"\n"


def _checksum(fields: dict[str, Any]) -> str:
    """Changes with every value in the file, and not with its layout."""
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:16]


class _Header(msgspec.Struct, frozen=True):
    """What every version has; a file without a format is a bare Case."""

    format: int | None = None


def _read_bare(data: bytes) -> CorpusEntry:
    return bare_entry(codec.decode(data))


_decode_1 = msgspec.json.Decoder(CorpusEntry).decode


def _read_1(data: bytes) -> CorpusEntry:
    """Its last writers noted the releases that a bisection had tried, with the name of the
    build.
    """
    stored = msgspec.structs.replace(_decode_1(data), format=FORMAT)
    fresh = new_lifecycle(stored)
    bad, good = set(map(release, stored.bad_on)), set(map(release, stored.good_on))
    return with_versions(fresh, bad | (set(fresh.bad_on) - good), good) if bad | good else fresh


def _read_2(data: bytes) -> CorpusEntry:
    """What was written by hand has no checksum. Format 2 named no cause."""
    fields = msgspec.json.decode(data, type=dict[str, Any])
    stored = [fields.pop("checksum")] if "checksum" in fields else []
    entry = msgspec.convert(fields, CorpusEntry)
    if stored and stored != [_checksum(fields)]:
        raise InvalidEntry(
            "the file was changed after it was saved",
            'restore it, or remove its "checksum" where that was on purpose',
        )
    return msgspec.structs.replace(entry, format=FORMAT)


def _resharding(entry: CorpusEntry) -> CorpusEntry:
    """Before format 4, parameters were resharded without an op wherever that is asked for."""
    try:
        places = lacking_reshards(entry.case)
    except (LookupError, AttributeError):  # an op names what is not there, as validate() will say
        return entry
    if not places:
        return entry

    def moved(index: int) -> int:
        return index + sum(place <= index for place in places)

    findings = (msgspec.structs.replace(f, op=moved(f.op)) for f in entry.findings)
    return msgspec.structs.replace(entry, case=with_reshards(entry.case), findings=tuple(findings))


READERS: dict[int | None, Callable[[bytes], CorpusEntry]] = {
    None: _read_bare,
    1: _read_1,
    2: _read_2,
    3: _read_2,
    4: _read_2,
}
"""One reader for each format version; a reader of an older one returns today's struct."""


def decode_entry(data: bytes, path: Path) -> CorpusEntry:
    """The entry in ``data``, read from ``path``; a bare Case is an entry that expects PASS.

    Raises :class:`InvalidEntry`, naming the file, for anything but a Case that could be run.
    """
    try:
        version = msgspec.json.decode(data, type=_Header).format
        if version not in READERS:
            raise InvalidEntry(
                f"format {version} is not known to this version, which reads up to {FORMAT}",
                "upgrade fuzzshard"
                if version is not None and version > FORMAT
                else "restore the file",
            )
        entry = READERS[version](data)
        if version != FORMAT:
            entry = _resharding(entry)
        for known in (*entry.bad_on, *entry.good_on):
            release(known)
        validate(entry.case)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidEntry(
            f"{path}: not a corpus entry: {_one_line(error)}", "restore the file or delete it"
        ) from None
    except InvalidVersion as error:
        raise InvalidEntry(
            f"{path}: {_one_line(error)}", "write the version of torch as 2.13.0"
        ) from None
    except FuzzshardError as error:
        raise InvalidEntry(f"{path}: {error.problem}", error.remedy) from None
    return entry


def read_entry(path: Path, *, below: Path | None = None) -> CorpusEntry:
    """The entry in the file ``path``, without following links under ``below``; raises
    :class:`InvalidEntry`.
    """
    try:
        data = read_regular(path, below=below)
    except OSError as error:
        raise InvalidEntry(
            f"cannot read {path}: {error.strerror}", "check the path and its permissions"
        ) from None
    return decode_entry(data, path)


def entry_or_none(path: Path) -> CorpusEntry | None:
    """The entry in the file ``path``; None where it was moved away, or cannot be read."""
    with contextlib.suppress(InvalidEntry):
        return read_entry(path)
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
