"""One corpus entry: a Case, what it showed, where, and how to show it again.

On disk an entry is a folder ``findings/<slug>/`` with ``case.json`` (this struct), ``repro.py`` (the
standalone script) and ``unshrunk.json`` (the Case as it was first found). ``format`` comes first in the
file; :data:`READERS` has one reader for every version there ever was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from fuzzshard.case import codec
from fuzzshard.case.case import Case, Mesh
from fuzzshard.case.validate import validate
from fuzzshard.errors import FuzzshardError, InvalidEntry
from fuzzshard.verdict import Finding, Status, Verdict

FORMAT = 1


class Confirmation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often the finding came back: ``reproduced`` of ``runs`` runs in fresh worlds."""

    runs: int
    reproduced: int


class Culprit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One change of the case, in words that complete "it works ...", and the status it gives."""

    change: str
    outcome: str


class CorpusEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A Case with its expectation.

    ``status`` PASS with an empty ``signature`` is a plain regression case. ``torch``, ``device`` and
    ``mesh`` say where the finding was seen, ``preload`` what else was loaded there (replaying never
    loads it by itself: nothing that is read is executed). ``replay`` is the command to run. ``bad_on`` and
    ``good_on`` are versions of torch that show the finding and that do not, as far as anyone has looked;
    ``culprits`` are changes of the case that make it right.
    """

    format: int = FORMAT
    signature: str = ""
    status: Status = Status.PASS
    rung: str = ""
    torch: str = ""
    device: Literal["", "cpu", "cuda"] = ""
    mesh: str = ""
    preload: tuple[str, ...] = ()
    replay: str = ""
    confirmed: Confirmation | None = None
    findings: tuple[Finding, ...] = ()
    notes: dict[str, str] = {}
    stacks: dict[str, str] = {}
    culprits: tuple[Culprit, ...] = ()
    bad_on: tuple[str, ...] = ()
    good_on: tuple[str, ...] = ()
    case: Case

    @property
    def flaky(self) -> bool:
        """Whether the finding stayed away in some of the confirming runs."""
        return self.confirmed is not None and self.confirmed.reproduced < self.confirmed.runs


def make_entry(
    case: Case,
    verdict: Verdict,
    info: Mapping[str, str],
    *,
    preload: tuple[str, ...] = (),
    confirmed: Confirmation | None = None,
) -> CorpusEntry:
    """The entry for ``verdict`` on ``case``; ``info`` is that of the world (keys ``torch``, ``device``)."""
    return CorpusEntry(
        signature=verdict.signature,
        status=verdict.status,
        rung=verdict.rung,
        torch=info["torch"],
        device="cuda" if info["device"].startswith("cuda") else "cpu",
        mesh=mesh_text(case.mesh),
        preload=preload,
        confirmed=confirmed,
        findings=verdict.findings,
        notes=verdict.notes,
        stacks=verdict.stacks,
        case=case,
    )


def mesh_text(mesh: Mesh) -> str:
    """``"shard 4"``, or ``"replicate 2 x shard 2"`` for HSDP, outermost axis first."""
    axes = ("pipeline", "replicate", "shard", "tensor")
    return " x ".join(f"{axis} {size}" for axis in axes if (size := getattr(mesh, axis)) is not None)


def digest(case: Case) -> str:
    """Eight hex digits that are the same for equal cases, in every process and on every machine."""
    return hashlib.sha256(codec.encode(case)).hexdigest()[:8]


def slug(signature: str, case: Case) -> str:
    """The folder name of an entry: ``divergence-fully_shard-gradient-1f3a09bc``."""
    words = re.sub(r"[^A-Za-z0-9_]+", "-", signature).strip("-")
    return f"{words[:80] or 'case'}-{digest(case)}"


def encode_entry(entry: CorpusEntry) -> bytes:
    """Indented JSON with a final newline: made to be read and to be reviewed as a diff."""
    return msgspec.json.format(msgspec.json.encode(entry), indent=2) + b"\n"


class _Header(msgspec.Struct, frozen=True):
    """What every version has; a file without a format is a bare Case."""

    format: int | None = None


def _read_bare(data: bytes) -> CorpusEntry:
    case = codec.decode(data)
    return CorpusEntry(case=case, mesh=mesh_text(case.mesh))


READERS: dict[int | None, Callable[[bytes], CorpusEntry]] = {
    None: _read_bare,
    1: msgspec.json.Decoder(CorpusEntry).decode,
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
                f"{path}: format {version} is not known to this version, which reads up to {FORMAT}",
                "upgrade fuzzshard" if version is not None and version > FORMAT else "restore the file",
            )
        entry = READERS[version](data)
        validate(entry.case)
    except InvalidEntry:
        raise
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidEntry(
            f"{path}: not a corpus entry: {_one_line(error)}", "restore the file or delete it"
        ) from None
    except FuzzshardError as error:
        raise InvalidEntry(f"{path}: {error.problem}", error.remedy) from None
    return entry


def read_entry(path: Path) -> CorpusEntry:
    """The entry in the file ``path``; raises :class:`InvalidEntry`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidEntry(
            f"cannot read {path}: {error.strerror}", "check the path and its permissions"
        ) from None
    return decode_entry(data, path)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
