"""Corpus entries as JSON: one writer, one reader, a checksum."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import InvalidVersion

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.case.limits import LARGEST_DIM, check_limits
from fuzzshard.corpus.entry import FORMAT, CorpusEntry, bare_entry
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
    """Return indented JSON with a final newline: made to be read and to be reviewed as a diff."""
    fields = msgspec.to_builtins(entry)
    data = msgspec.json.encode({**fields, "checksum": _checksum(fields)})
    return msgspec.json.format(data, indent=2) + b"\n"


def _checksum(fields: dict[str, Any]) -> str:
    """Changes with every value in the file, and not with its layout."""
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:16]


def _check_unchanged(fields: Fields) -> None:
    """Takes the checksum out of ``fields``; what was written by hand has none."""
    if "checksum" in fields and fields.pop("checksum") != _checksum(fields):
        raise InvalidEntry(
            "the file was changed after it was saved",
            'restore it, or remove its "checksum" where that was on purpose',
        )


def decode_entry(data: bytes, path: Path) -> CorpusEntry:
    """Return the entry in ``data``, read from ``path``; a bare Case is an entry that expects PASS.

    Its texts are :func:`printable`. Raises :class:`InvalidEntry`, naming the file, for anything
    but a Case that could be run, whatever is wrong with it: a bad entry costs no other one.
    """
    where = printable(str(path))
    try:
        return _decoded(msgspec.json.decode(data, type=dict[str, Any]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if path.suffix != ".json":
            advice = "give an entry's folder or its case.json"
            raise InvalidEntry(f"{where} is no case file", advice) from None
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
    if "format" in fields:
        if (version := fields["format"]) != FORMAT:
            raise InvalidEntry(
                f"its format is {printable(str(version))[:20]}, and this fuzzshard reads {FORMAT}",
                "use the fuzzshard that wrote it, or restore the file",
            )
        _check_unchanged(fields)
        check_limits(fields.get("case"))
        entry = msgspec.convert(all_printable(fields), CorpusEntry)
    else:
        check_limits(fields)
        entry = bare_entry(msgspec.convert(all_printable(fields), Case))
    for known in (*entry.bad_on, *entry.good_on, *([entry.torch] if entry.torch else [])):
        release(known)
    validate(entry.case)
    for finding in entry.findings:
        check_finding(finding, entry.case)
    return entry


def read_entry(path: Path, *, below: Path | None = None) -> CorpusEntry:
    """Return the entry in the file ``path``, without following links under ``below``; raises
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
    """Return the entry in the file ``path``; None where it was moved away, or cannot be read."""
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
        raise InvalidCase(f"a finding is of rank {finding.rank}, which no world has", _REMEDY)
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
