"""Where entries lie: finding them below paths and saving them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fuzzshard.case import codec
from fuzzshard.corpus.codec import encode_entry, entry_or_none
from fuzzshard.corpus.entry import CorpusEntry, script_digest, slug
from fuzzshard.corpus.files import read_regular, write_atomic
from fuzzshard.corpus.portable import portable_folder
from fuzzshard.errors import UsageError
from fuzzshard.mending.mend import own_mends

CASE_FILE = "case.json"
SUBJECT_FILE = "subject.json"
"""An entry that runs code of the user's (:mod:`fuzzshard.checking.entry`), a kind of its own:
nothing that reads cases takes it for one.
"""
SCRIPT_FILE = "repro.py"
UNSHRUNK_FILE = "unshrunk.json"
REPORT_FILE = "report.md"
STATS_FILE = "stats.json"
"""The figures of the campaign that writes to the corpus."""
NODE_FILE = "node.json"
"""By which a campaign tells others that it runs (:mod:`fuzzshard.campaign.exchange`). Neither this
nor the figures are an entry.
"""
PAGE_FILE = "report.html"
"""The page that a campaign keeps in its corpus."""
RECORDING_FILE = "flight_recorder_{rank}.json"
FINDINGS_FOLDER = "findings"
UNJUDGED_FOLDER = "unjudged"
INCONCLUSIVE_FOLDER = "inconclusive"
FLEET_FOLDER = "fleet"
"""What the nodes of a fleet have told, in the corpus that was made of it (:mod:`fuzzshard.fleet`).
Nothing that reads the corpus looks in there.
"""

NO_SCRIPT = "# No reproducer could be generated"
"""How the file of a script begins that says why there is none."""


def entry_files(paths: Iterable[Path]) -> list[Path]:
    """Return the JSON files that ``paths`` stand for, sorted, each once.

    A path is an entry's folder, a JSON file, or a folder to search. What lies next to a
    ``case.json`` belongs to that entry. Raises :class:`UsageError` for a path that does not exist.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            advice = "give an entry's folder, a case file or a corpus"
            if str(path) in own_mends():
                advice += f"; about the known bug of that name, run: fuzzshard show {path}"
            raise UsageError(f"{path} does not exist", advice)
        here = _files_below(path) if path.is_dir() else [path]
        files.update(dict.fromkeys(file for file in here if not is_subject_file(file)))
    return list(files)


def subject_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files of entries of users' own code below ``paths``, sorted, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        here = sorted(path.rglob(SUBJECT_FILE)) if path.is_dir() else [path]
        found.update(dict.fromkeys(file for file in here if is_subject_file(file)))
    return list(found)


def is_subject_file(file: Path) -> bool:
    """Return whether ``file`` is an entry of the user's own code."""
    return file.name == SUBJECT_FILE


def only_case(path: Path) -> Path:
    """Return the file of the one case that ``path`` stands for; raises :class:`UsageError` for
    none or several.
    """
    files = entry_files([path])
    if len(files) != 1:
        raise UsageError(
            f"{path} holds {f'{len(files)} cases' if files else 'no case'}",
            "give one entry or one case file",
        )
    return files[0]


def is_entry_below(folder: Path, file: Path) -> bool:
    """Return whether :func:`entry_files` of ``folder`` would hold ``file``."""
    if (
        file.suffix != ".json"
        or not file.is_relative_to(folder)
        or _is_other(file.relative_to(folder))
    ):
        return False
    return file.name == CASE_FILE or not (file.parent / CASE_FILE).exists()


def _files_below(folder: Path) -> list[Path]:
    found = [p for p in folder.rglob("*.json") if not _is_other(p.relative_to(folder))]
    entries = {p.parent for p in found if p.name == CASE_FILE}
    return sorted(p for p in found if p.name == CASE_FILE or p.parent not in entries)


def _is_other(path: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.parts)
    is_told = (path.parts[:1], path.parts[2:3]) == ((FLEET_FOLDER,), (FINDINGS_FOLDER,))
    return is_hidden or is_told or path.name in (STATS_FILE, NODE_FILE, SUBJECT_FILE)


def saved_script(file: Path) -> str | None:
    """Return the script beside the entry in ``file``, or None where there is none to run."""
    script = file.with_name(SCRIPT_FILE)
    if file.name != CASE_FILE or not script.is_file():
        return None
    try:
        text = read_regular(script).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if text.startswith(NO_SCRIPT) else text


def save_unshrunk(corpus: Path, entry: CorpusEntry, script: str) -> Path:
    """Saves a new finding before anything else is tried with it; returns its folder.

    The same case found again keeps the entry that is there, which may be shrunk already.
    """
    folder = corpus / FINDINGS_FOLDER / slug(entry.signature, entry.case)
    if entry_or_none(folder / CASE_FILE) is None:
        write_atomic(folder / UNSHRUNK_FILE, codec.encode(entry.case) + b"\n")
        save_shrunk(folder, entry, script)
    return folder


def save_shrunk(folder: Path, entry: CorpusEntry, script: str) -> None:
    """Replaces the entry in ``folder`` by its smaller form; ``unshrunk.json`` stays as it is.

    ``case.json`` comes last: an entry that is there is whole. Of a script that takes the place of
    a reduced one it no longer says that.
    """
    write_atomic(folder / SCRIPT_FILE, script.encode())
    command = replay_command(portable_folder(folder), entry)
    reduced = entry.reduced if entry.reduced == script_digest(script) else ""
    saved = msgspec.structs.replace(entry, replay=command, reduced=reduced)
    write_atomic(folder / CASE_FILE, encode_entry(saved))


def save_recordings(folder: Path, recordings: Mapping[str, str]) -> None:
    """Puts what the flight recorder said of each rank that hung beside the entry in ``folder``."""
    for rank, text in recordings.items():
        write_atomic(folder / RECORDING_FILE.format(rank=rank), text.encode())


def replay_command(path: Path, entry: CorpusEntry) -> str:
    """Return the command that replays the entry at ``path`` as it was found."""
    words = ["fuzzshard", "replay", str(path)]
    if entry.device == "cuda":
        words += ["--device", "cuda"]
    for file in entry.preload:
        words += ["--preload", file]
    return shlex.join(words)
