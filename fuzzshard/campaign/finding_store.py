"""What a campaign writes: findings as found, then shrunk, with a reproducer that has been run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fuzzshard.campaign.known import Found
from fuzzshard.campaign.reduce import Judged
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import entry_or_none, read_entry
from fuzzshard.corpus.distinct import FindingKey, finding_key, replaced
from fuzzshard.corpus.entry import CorpusEntry, make_entry, script_digest, slug
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.scripts import (
    ScriptCheck,
    ScriptReduction,
    ScriptRender,
    script_of,
    scripts_of,
    shown_by,
)
from fuzzshard.corpus.store import (
    CASE_FILE,
    FINDINGS_FOLDER,
    INCONCLUSIVE_FOLDER,
    NO_SCRIPT,
    SCRIPT_FILE,
    UNJUDGED_FOLDER,
    UNSHRUNK_FILE,
    entry_files,
    save_recordings,
    save_shrunk,
    save_unshrunk,
)
from fuzzshard.reproducer.check import ranks_needed
from fuzzshard.reproducer.shown import Shown
from fuzzshard.verdict import Status, Verdict

NOT_RUN = "nobody has run it yet"
"""The note on the script of an entry until it was run: the same command goes on there."""


def is_in_work(entry: CorpusEntry) -> bool:
    """Return whether the campaign of ``entry`` has not shrunk it yet, or not run its script."""
    return entry.unshrunk or entry.notes.get(SCRIPT_FILE) == NOT_RUN


class FindingStore:
    """Saves findings below ``corpus``; one per campaign, from any of its threads.

    Every method raises :class:`fuzzshard.errors.InfraError` for a disk that is full or read-only.
    """

    def __init__(
        self,
        corpus: Path,
        preload: tuple[Path, ...],
        render: ScriptRender,
        check: ScriptCheck,
        reduce: ScriptReduction | None = None,
    ) -> None:
        self.corpus = corpus
        self.preload = tuple(path.resolve() for path in preload)
        self._render = render
        self._check = check
        self._reduce = reduce
        self._saved = _minimal_cases(corpus)

    def save_found(self, found: Found, info: Mapping[str, str]) -> Path:
        """Saves a finding as it was found; returns its folder."""
        entry = self._entry(found.case, found.verdict, info)
        folder = save_unshrunk(self.corpus, entry, script_of(entry, self._render))
        save_recordings(folder, found.verdict.recordings)
        return folder

    def same_as(self, judged: Judged, folder: Path) -> Path | None:
        """Return the other entry that has this minimal case and signature already; then ``folder``
        goes away.
        """
        known = self._saved.get(finding_key(judged.verdict.signature, judged.case))
        if known is None or known == folder:
            return None
        self.discard(folder)
        return known

    def has(self, key: FindingKey) -> bool:
        """Return whether the finding with this minimal case is saved."""
        return key in self._saved

    def learn(self, folder: Path, entry: CorpusEntry) -> None:
        """Note that another node has found ``entry``, which is in ``folder`` now."""
        self._saved[finding_key(entry.signature, entry.case)] = folder

    def save_smaller(
        self, folder: Path, case: Case, verdict: Verdict, info: Mapping[str, str]
    ) -> None:
        """Replaces the entry in ``folder`` by the smallest case so far, which is not confirmed
        yet.
        """
        self._replace(folder, self._entry(case, verdict, info))
        save_recordings(folder, verdict.recordings)

    def save_suspect(self, index: int, case: Case, verdict: Verdict) -> Path:
        """Saves a case that waits to be explained; the next session judges it if this one does
        not.
        """
        folder = self.corpus / UNJUDGED_FOLDER / f"{slug(verdict.signature, case)}-{index}"
        write_atomic(folder / UNSHRUNK_FILE, codec.encode(case) + b"\n")
        return folder

    def save_unjudged(self, case: Case) -> Path:
        """Saves a case that no verdict could be had on; returns its file."""
        file = self.corpus / UNJUDGED_FOLDER / f"{slug('case', case)}.json"
        write_atomic(file, codec.encode(case) + b"\n")
        return file

    def save_judged(self, folder: Path, judged: Judged) -> CorpusEntry:
        """Replaces the entry in ``folder`` by what came of it; :meth:`verify` runs its script."""
        entry = self._entry(judged.case, judged.verdict, judged.info, judged)
        entry = entry if judged.cut_off else _with_note(entry, NOT_RUN)
        self._replace(folder, entry)
        save_recordings(folder, judged.verdict.recordings)
        self._saved[finding_key(entry.signature, entry.case)] = folder
        return self.entry(folder)

    def _replace(self, folder: Path, entry: CorpusEntry) -> None:
        """Saves ``entry`` in ``folder``, with what people wrote into the one that is there."""
        whole = _with_what_is_written(folder, entry)
        save_shrunk(folder, whole, script_of(whole, self._render))

    def save_flaky(self, found: Found, folder: Path, judged: Judged) -> Path:
        """Moves a finding that did not come back to ``inconclusive/``; returns its new folder."""
        moved = self.corpus / INCONCLUSIVE_FOLDER / folder.name
        new = self._entry(found.case, found.verdict, judged.info, judged)
        entry = _with_what_is_written(folder, new)
        write_atomic(moved / UNSHRUNK_FILE, codec.encode(found.case) + b"\n")
        save_shrunk(
            moved,
            msgspec.structs.replace(entry, status=Status.INCONCLUSIVE),
            script_of(entry, self._render),
        )
        save_recordings(moved, found.verdict.recordings)
        self.discard(folder)
        return moved

    def verify(self, folder: Path, entry: CorpusEntry) -> bool:
        """Run scripts until one shows the finding, and save it, then what is left of it when it is
        reduced; if none does, the entry gets a note.
        """
        first = (folder / SCRIPT_FILE).read_text()
        if first.startswith(NO_SCRIPT):
            note = f"{first.strip().removeprefix('# ')}; replaying the case shows the finding"
        else:
            for text in scripts_of(entry, self._render):
                write_atomic(folder / SCRIPT_FILE, text.encode())
                if self._shows(folder / SCRIPT_FILE, entry):
                    shown = _with_note(entry, "")
                    save_shrunk(folder, shown, text)
                    if self._reduce is not None:
                        smaller = self._reduce(entry, text, preload=self.preload)
                        if smaller != text:
                            shown = msgspec.structs.replace(shown, reduced=script_digest(smaller))
                            save_shrunk(folder, shown, smaller)
                    return True
            note = "running it did not show the finding; replaying the case does"
        save_shrunk(folder, _with_note(entry, note), first)
        return False

    def _shows(self, script: Path, entry: CorpusEntry) -> bool:
        ranks = ranks_needed(script.read_text())
        result = self._check(script, ranks, preload=self.preload)
        return shown_by(result, entry) is Shown.YES

    def entry(self, folder: Path) -> CorpusEntry:
        """Return the entry in ``folder``."""
        return read_entry(folder / CASE_FILE)

    def discard(self, folder: Path) -> None:
        """Removes the unshrunk entry of a campaign; an older, confirmed one of the same name
        stays.
        """
        if self.entry(folder).confirmed is None:
            shutil.rmtree(folder)

    def remove_half(self, folder: Path) -> None:
        """Removes what was saved of an entry, unless it is whole by now."""
        if not (folder / CASE_FILE).exists():
            shutil.rmtree(folder)

    def _entry(
        self, case: Case, verdict: Verdict, info: Mapping[str, str], judged: Judged | None = None
    ) -> CorpusEntry:
        confirmed = (
            judged.confirmation if judged is not None and judged.confirmation.runs else None
        )
        return make_entry(
            case,
            verdict,
            info,
            preload=tuple(map(str, self.preload)),
            confirmed=confirmed,
            unshrunk=judged is None or judged.cut_off,
            culprits=judged.culprits if judged is not None else (),
        )


def _with_note(entry: CorpusEntry, note: str) -> CorpusEntry:
    """``entry`` with this note on its script, or with none."""
    others = {name: text for name, text in entry.notes.items() if name != SCRIPT_FILE}
    notes = {**others, SCRIPT_FILE: note} if note else others
    return msgspec.structs.replace(entry, notes=notes)


def _with_what_is_written(folder: Path, new: CorpusEntry) -> CorpusEntry:
    """``new`` with what is known of the entry in ``folder``, where nobody has moved or broken that
    one.
    """
    old = entry_or_none(folder / CASE_FILE)
    return new if old is None else replaced(old, new)


def _minimal_cases(corpus: Path) -> dict[FindingKey, Path]:
    """Return the confirmed findings of campaigns in ``corpus``; files that cannot be read are not
    ours to judge.
    """
    saved: dict[FindingKey, Path] = {}
    findings = corpus / FINDINGS_FOLDER
    for file in entry_files([findings]) if findings.exists() else ():
        entry = entry_or_none(file)
        if entry is not None and entry.is_confirmed:
            saved[finding_key(entry.signature, entry.case)] = file.parent
    return saved
