"""Adding to a corpus, and joining several."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fuzzshard.case import codec
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.distinct import Stored, distinct
from fuzzshard.corpus.entry import CorpusEntry, bare_entry, digest, is_slug, slug
from fuzzshard.corpus.files import read_regular, write_atomic
from fuzzshard.corpus.scripts import ScriptRender, script_of
from fuzzshard.corpus.store import (
    CASE_FILE,
    FINDINGS_FOLDER,
    INCONCLUSIVE_FOLDER,
    SCRIPT_FILE,
    UNSHRUNK_FILE,
    entry_files,
    save_shrunk,
)
from fuzzshard.errors import InfraError, InvalidEntry
from fuzzshard.verdict import Status

REGRESSIONS_FOLDER = "regressions"


def load(paths: Iterable[Path], *, follow: bool = True) -> tuple[list[Stored], list[InvalidEntry]]:
    """Return the entries that ``paths`` stand for, each once, and what is wrong with the other
    files there; with ``follow`` off, with a link too, and with what :func:`add` would copy.
    """
    stored: dict[Path, Stored] = {}
    broken: dict[Path, InvalidEntry] = {}
    for root in paths:
        for file in entry_files([root]):
            place = Path(os.path.realpath(file))
            try:
                item = Stored(file, root, read_entry(file)) if follow else read_foreign(file, root)
                stored.setdefault(place, item)
            except InvalidEntry as error:
                broken[place] = error
    return list(stored.values()), list(broken.values())


def read_foreign(file: Path, root: Path) -> Stored:
    """Return the entry that somebody else has put into ``file``, a link nowhere under ``root``.

    Raises :class:`InvalidEntry` if any file that :func:`add` copies cannot be read.
    """
    item = Stored(file, root, read_entry(file, below=None if file == root else root))
    _script(item), _unshrunk(item)
    return item


def add(item: Stored, corpus: Path, render: ScriptRender) -> Path:
    """Copies an entry or a bare case into ``corpus``; the folder or the file that it is in then.

    A finding gets a folder named after its signature, with the script; a case without one keeps
    its place below a folder of ``item.root``, or else goes to ``regressions/``. Raises
    :class:`InfraError` for a disk that is full or read-only, and :class:`InvalidEntry` for a
    script that cannot be read.
    """
    if not item.entry.signature:
        return _add_bare(item, corpus)
    script, unshrunk = _script(item), _unshrunk(item)
    folder = _free_folder(item, corpus)
    if unshrunk is not None:
        write_atomic(folder / UNSHRUNK_FILE, unshrunk)
    save_shrunk(folder, item.entry, script_of(item.entry, render) if script is None else script)
    return folder


def merge(
    sources: Sequence[Stored], target: Sequence[Stored], corpus: Path, render: ScriptRender
) -> Iterator[tuple[str, Path]]:
    """Adds ``sources`` to ``corpus``, which holds ``target``; yields what happened to which path.

    Of findings that show the same the one to keep is added, and those that it replaces go away
    afterwards, so an interruption loses none. Cases without a finding are never replaced.
    """
    is_ours = {item.file for item in target}
    for same in distinct([*target, *sources]):
        keep, *others = same.items
        ours = [item for item in same.items if item.file in is_ours]
        if keep.file in is_ours:
            if same.entry != keep.entry:
                _rewrite(keep.file, same.entry)
                yield "updated", keep.file
            yield from (("known", item.file) for item in others if item.file not in is_ours)
            continue
        yield "added", add(Stored(keep.file, keep.root, same.entry), corpus, render)
        yield from (("known", item.file) for item in others if item.file not in is_ours)
        for item in ours if same.entry.signature else ():
            _remove(item.file)
            yield "replaced", item.file


def _free_folder(item: Stored, corpus: Path) -> Path:
    """Return the name that a corpus gave it, else the usual one; the other kind of device may have
    taken both.
    """
    kind = INCONCLUSIVE_FOLDER if item.entry.status is Status.INCONCLUSIVE else FINDINGS_FOLDER
    usual, given = slug(item.entry.signature, item.entry.case), item.file.parent.name
    kept = [given] if item.file.name == CASE_FILE and is_slug(given, item.entry.signature) else []
    free = (name for name in (*kept, usual) if not (corpus / kind / name).exists())
    return corpus / kind / next(free, f"{usual}-{item.entry.device}")


def _add_bare(item: Stored, corpus: Path) -> Path:
    place = Path(item.file.name) if item.file == item.root else item.file.relative_to(item.root)
    target = corpus / (place if place.parent.name else REGRESSIONS_FOLDER / place)
    if target.exists():
        target = target.with_stem(f"{target.stem}-{digest(item.entry.case)}")
    is_bare = item.entry == bare_entry(item.entry.case)
    write_atomic(
        target, codec.encode(item.entry.case) + b"\n" if is_bare else encode_entry(item.entry)
    )
    return target


def _script(item: Stored) -> str | None:
    data = _beside(item, SCRIPT_FILE)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        script = item.file.with_name(SCRIPT_FILE)
        raise InvalidEntry(f"{script} is no text", "remove it") from None


def _unshrunk(item: Stored) -> bytes | None:
    return _beside(item, UNSHRUNK_FILE)


def _beside(item: Stored, name: str) -> bytes | None:
    """The file ``name`` of the entry, without following a link to it; None if it has none."""
    file = item.file.with_name(name)
    if item.file.name != CASE_FILE:
        return None
    try:
        below = file.parent if item.file == item.root else item.root
        return read_regular(file, below=below)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidEntry(f"cannot read {file}: {error.strerror}", "remove it") from None


def _rewrite(file: Path, entry: CorpusEntry) -> None:
    write_atomic(file, encode_entry(entry))


def _remove(file: Path) -> None:
    try:
        if file.name == CASE_FILE:
            shutil.rmtree(file.parent)
        else:
            file.unlink()
    except OSError as error:
        raise InfraError(
            f"cannot remove {file}: {error.strerror}", "check its permissions"
        ) from None
