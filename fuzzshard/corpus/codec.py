"""Corpus entries as JSON: one writer, a reader for every version there ever was, a checksum."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import InvalidVersion

from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.case.edit import with_reshards
from fuzzshard.case.limits import LARGEST_DIM, check_limits
from fuzzshard.case.schedule_state import lacking_reshards
from fuzzshard.case.validate import validate
from fuzzshard.corpus.entry import FORMAT, CorpusEntry, bare_entry, new_lifecycle
from fuzzshard.corpus.expectation import with_versions
from fuzzshard.corpus.files import read_regular
from fuzzshard.corpus.lifecycle import release
from fuzzshard.errors import FuzzshardError, InvalidCase, InvalidEntry, UsageError
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.names import check_name
from fuzzshard.parts.oracle import NOT_REFUSED
from fuzzshard.parts.oracles import named
from fuzzshard.printable import all_printable, printable
from fuzzshard.verdict import Finding

Fields = dict[str, Any]
"""An entry as decoded JSON."""


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


def _read_bare(fields: Fields) -> CorpusEntry:
    return bare_entry(msgspec.convert(fields, Case))


def _read_1(fields: Fields) -> CorpusEntry:
    """Its last writers noted the releases that a bisection had tried, with the name of the
    build.
    """
    stored = msgspec.structs.replace(msgspec.convert(fields, CorpusEntry), format=FORMAT)
    fresh = new_lifecycle(stored)
    bad, good = set(map(release, stored.bad_on)), set(map(release, stored.good_on))
    return with_versions(fresh, bad | (set(fresh.bad_on) - good), good) if bad | good else fresh


def _read_2(fields: Fields) -> CorpusEntry:
    """Format 2 named no cause."""
    return msgspec.structs.replace(msgspec.convert(fields, CorpusEntry), format=FORMAT)


def _check_unchanged(fields: Fields) -> None:
    """Takes the checksum out of ``fields``; what was written by hand has none."""
    if "checksum" in fields and fields.pop("checksum") != _checksum(fields):
        raise InvalidEntry(
            "the file was changed after it was saved",
            'restore it, or remove its "checksum" where that was on purpose',
        )


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


READERS: dict[int | None, Callable[[Fields], CorpusEntry]] = {
    None: _read_bare,
    1: _read_1,
    2: _read_2,
    3: _read_2,
    4: _read_2,
}
"""One reader for each format version; a reader of an older one returns today's struct."""


def decode_entry(data: bytes, path: Path) -> CorpusEntry:
    """The entry in ``data``, read from ``path``; a bare Case is an entry that expects PASS.

    Its texts are :func:`printable`. Raises :class:`InvalidEntry`, naming the file, for anything
    but a Case that could be run, whatever is wrong with it: a bad entry costs no other one.
    """
    where = printable(str(path))
    try:
        return _decoded(msgspec.json.decode(data, type=dict[str, Any]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidEntry(
            f"{where}: not a corpus entry: {_one_line(error)}", "restore the file or delete it"
        ) from None
    except InvalidVersion as error:
        raise InvalidEntry(
            f"{where}: {_one_line(error)}", "write the version of torch as 2.13.0"
        ) from None
    except FuzzshardError as error:
        raise InvalidEntry(f"{where}: {error.problem}", error.remedy) from None
    except Exception as error:
        # what is checked last may be what an earlier check takes for granted
        raise InvalidEntry(
            f"{where}: not a case that can be run: {type(error).__name__}: {_one_line(error)}",
            "restore the file or delete it",
        ) from error


def _decoded(fields: Fields) -> CorpusEntry:
    version = msgspec.convert(fields, _Header).format
    if version not in READERS:
        newer = version is not None and version > FORMAT
        raise InvalidEntry(
            f"format {version} is not known to this version, which reads up to {FORMAT}",
            "upgrade fuzzshard" if newer else "restore the file",
        )
    if version is not None and version > 1:
        _check_unchanged(fields)
    case = fields if version is None else fields.get("case")
    check_limits(case)
    if isinstance(case, dict):
        case.pop("relation", None)  # a second run, which earlier releases did (note 0047)
    entry = READERS[version](all_printable(fields))
    if version != FORMAT:
        entry = _resharding(entry)
    for known in (*entry.bad_on, *entry.good_on, *([entry.torch] if entry.torch else [])):
        release(known)
    validate(entry.case)
    for finding in entry.findings:
        check_finding(finding, entry.case)
    return entry


def read_entry(path: Path, *, below: Path | None = None) -> CorpusEntry:
    """The entry in the file ``path``, without following links under ``below``; raises
    :class:`InvalidEntry`.
    """
    try:
        data = read_regular(path, below=below)
    except OSError as error:
        raise InvalidEntry(
            f"cannot read {printable(str(path))}: {error.strerror}",
            "check the path and its permissions",
        ) from None
    return decode_entry(data, path)


def entry_or_none(path: Path) -> CorpusEntry | None:
    """The entry in the file ``path``; None where it was moved away, or cannot be read."""
    with contextlib.suppress(InvalidEntry):
        return read_entry(path)
    return None


def _one_line(error: Exception) -> str:
    return printable(" ".join(str(error).split()))


def check_finding(finding: Finding, case: Case) -> None:
    """Raises :class:`InvalidCase` for a finding that names what ``case`` cannot have."""
    if finding.engine not in ("", REFERENCE.name, *ALL_ENGINES):
        raise InvalidCase(f"a finding accuses {finding.engine!r}, which is no engine", _REMEDY)
    if not -1 <= finding.op < len(case.schedule):
        raise InvalidCase(f"a finding is at op {finding.op}, which is not there", _REMEDY)
    if not 0 <= finding.rank < LARGEST_DIM:  # a world may be larger than the mesh
        raise InvalidCase(f"a finding is of rank {finding.rank}", _REMEDY)
    try:
        named(finding.oracle)
        if finding.detail != NOT_REFUSED:
            check_name(finding.name)
        else:
            re.compile(finding.name)
    except (UsageError, re.error) as error:
        problem = error.problem if isinstance(error, UsageError) else f"a pattern: {error}"
        raise InvalidCase(f"a finding names {problem}", _REMEDY) from None


_REMEDY = "restore the file from its campaign"
