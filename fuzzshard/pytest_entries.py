"""Entries of a corpus as pytest items. Collecting them imports no torch; ranks start with the
first item.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzzshard import __version__
from fuzzshard.campaign.explain import known_causes
from fuzzshard.checking.check import import_from_here
from fuzzshard.checking.entry import replay_subject
from fuzzshard.contracts import installed_torch
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.outcome import Outcome, Replayed, obstacle, replay_entry
from fuzzshard.corpus.replay import Explain, shown_path, unless_known
from fuzzshard.corpus.store import entry_files, is_entry_below, is_subject_file, subject_files
from fuzzshard.errors import FuzzshardError, InvalidEntry, UsageError
from fuzzshard.mending.mend import mends_for, own_mends
from fuzzshard.options import RankOptions, parse_duration
from fuzzshard.verdict import Verdict
from fuzzshard.world.world import SharedWorld

MARKERS = (
    'gpus(n): on CUDA, the number of GPUs that the entry needs; select with -m "gpus(n=2)"',
)


class RecordedFinding(Exception):
    """The finding that the entry records is there: what an open entry is expected to raise."""


class UnexpectedOutcome(Exception):
    """Another finding than the recorded one, one where none is expected, or ranks that failed."""

    def __init__(self, replayed: Replayed) -> None:
        super().__init__(f"{replayed.outcome}: {replayed.message}")
        self.replayed = replayed


class CorpusRun:
    """What the entries of one pytest run share: where they lie, the device, and the world they run
    in.

    Raises :class:`UsageError` for a path that is not there and for a device that this machine
    lacks.
    """

    def __init__(self, config: pytest.Config, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.exists():
                raise UsageError(
                    f"{root} does not exist", "give a corpus, an entry or a case file"
                )
            if not (entry_files((root,)) or subject_files((root,))):
                empty = f"fuzzshard: {root} has no case, so nothing of it is tested"
                config.issue_config_time_warning(pytest.PytestConfigWarning(empty), stacklevel=2)
        self.roots = [Path(os.path.abspath(root)) for root in roots]
        ranks = RankOptions(
            device=config.getoption("--fuzzshard-device"),
            ranks_per_device=config.getoption("--fuzzshard-ranks-per-device"),
            preload=tuple(
                config.invocation_params.dir / file
                for file in config.getoption("--fuzzshard-preload")
            ),
        )
        self.device, self.num_ranks = ranks.kind, ranks.most
        text = config.getoption("--fuzzshard-deadline")
        self.deadline = parse_duration(text) if text else None
        self.torch = installed_torch()
        self.world = SharedWorld(ranks.config(1))
        self.allows_user_code: bool = config.getoption("--fuzzshard-allow-user-code")
        known = config.getoption("--fuzzshard-known")
        self.explain: Explain = functools.partial(known_causes, mends_for() if known else ())

    def header(self) -> str:
        """Return versions, device, corpora, what else is loaded, and where seeds come from."""
        preload = self.world.config.preload
        return (
            f"fuzzshard: {__version__}, torch {self.torch}, {self.device}, up to {self.num_ranks} "
            f"ranks, corpus {', '.join(map(str, self.roots))}; every case has its own seed"
            + (f"; preloaded: {', '.join(preload)}" if preload else "")
        )

    def holds(self, path: Path) -> bool:
        """Return whether ``path`` is one of the corpora, or in one."""
        return any(path.is_relative_to(root) for root in self.roots)

    def is_subject(self, file: Path) -> bool:
        """Return whether ``file`` is an entry of the user's own code in one of the corpora."""
        return is_subject_file(file) and self.holds(file)

    def is_entry(self, file: Path) -> bool:
        """Return whether ``file`` is an entry or a bare case of one of the corpora."""
        if is_subject_file(file):
            return False
        return any(file == root or is_entry_below(root, file) for root in self.roots)

    def close(self) -> None:
        """Ends the ranks."""
        self.world.close()


class EntryFile(pytest.File):
    """The file of one entry, be it of the user's own code."""

    def __init__(self, *, corpus_run: CorpusRun, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.corpus_run = corpus_run

    def collect(self) -> Iterator[_Item]:
        """Yield the one item. The path has the name of the entry."""
        if self.corpus_run.is_subject(self.path):
            yield SubjectItem.from_parent(self, name="check", corpus_run=self.corpus_run)
        else:
            yield EntryItem.from_parent(self, name="replay", corpus_run=self.corpus_run)


class _Item(pytest.Item):
    """One entry."""

    def __init__(self, *, corpus_run: CorpusRun, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.corpus_run = corpus_run
        self.add_marker("fuzzshard")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return a line; no traceback, which would be ours."""
        if isinstance(excinfo.value, RecordedFinding | FuzzshardError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the entry lies, and its name. pytest wants a line for what is skipped."""
        shown = self.path.parent if is_subject_file(self.path) else shown_path(self.path)
        return self.path, 0, shown.stem


class EntryItem(_Item):
    """One entry: passes, fails, or is expected to fail, as :mod:`fuzzshard.corpus.expectation` has
    it. One that cannot be read fails, and is no error of collection.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.entry: CorpusEntry | InvalidEntry
        try:
            self.entry = read_entry(self.path)
            self._mark(self.entry)
        except InvalidEntry as error:
            self.entry = error

    def _mark(self, entry: CorpusEntry) -> None:
        self.add_marker(pytest.mark.gpus(n=entry.case.mesh.size))
        self.extra_keyword_matches.update((entry.signature, *entry.case.engines))
        if entry.lifecycle is not None:
            self.extra_keyword_matches.add(str(entry.lifecycle))
        state = self.corpus_run
        if reason := obstacle(entry, state.device, state.num_ranks):
            self.add_marker(pytest.mark.skip(reason=reason))
            return
        expectation = expected(entry, state.torch, state.device)
        if expectation is not Expected.NOTHING:
            strict = expectation is Expected.FINDING
            self.add_marker(
                pytest.mark.xfail(strict=strict, raises=RecordedFinding, reason=_reason(entry))
            )

    def runtest(self) -> None:
        """Runs the case in the shared world."""
        if isinstance(self.entry, InvalidEntry):
            raise self.entry
        state = self.corpus_run
        world = state.world.with_ranks(self.entry.case.mesh.size)
        replayed = replay_entry(world, self.entry, state.device, state.deadline)
        replayed = unless_known(world, replayed, self.entry, state.explain)
        match replayed.outcome:
            case Outcome.PASS:
                return
            case Outcome.FIXED:
                self.add_report_section(
                    "call", "fuzzshard", f"{replayed.message}\n{self._how_to_update()}"
                )
            case Outcome.SAME | Outcome.WONTFIX:
                raise RecordedFinding(replayed.message)
            case Outcome.KNOWN:
                pytest.xfail(replayed.message)
            case Outcome.INCONCLUSIVE:
                pytest.skip(f"inconclusive: {replayed.message}")
            case Outcome.SKIPPED:
                pytest.skip(replayed.message)
            case _:
                raise UnexpectedOutcome(replayed)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return what ``fuzzshard replay`` and ``fuzzshard show`` say; no traceback, which would
        be ours.
        """
        error = excinfo.value
        if isinstance(error, UnexpectedOutcome):
            verdict = error.replayed.verdict
            return "\n".join(
                (str(error), *(self._drawing(verdict) if verdict is not None else ()))
            )
        if isinstance(error, InvalidEntry):  # the id of the test has the path
            return f"{Outcome.INVALID}: {str(error).removeprefix(f'{self.path}: ')}"
        return super().repr_failure(excinfo, style)

    def _drawing(self, verdict: Verdict) -> Iterator[str]:
        """Yield the case with what was observed in this run; with ``--tb=short`` or shorter the
        finding alone.
        """
        from fuzzshard.report.show import drawn, drawn_findings

        assert isinstance(self.entry, CorpusEntry)
        yield ""
        if self.config.option.tbstyle in ("auto", "long"):
            seen = msgspec.structs.replace(
                self.entry,
                signature=verdict.signature,
                status=verdict.status,
                comparison=verdict.comparison,
                findings=verdict.findings,
                notes=verdict.notes,
                stacks=verdict.stacks,
                torch=self.corpus_run.torch,
                device=self.corpus_run.device,
                preload=self.corpus_run.world.config.preload,
                confirmed=None,
            )
            yield drawn(seen, self._shown_path())
        else:
            yield drawn_findings(verdict.findings)

    def _how_to_update(self) -> str:
        return f"to accept that: fuzzshard replay {self._shown_path()} --update"

    def _shown_path(self) -> Path:
        path = shown_path(self.path)
        start = self.config.invocation_params.dir
        return path.relative_to(start) if path.is_relative_to(start) else path


class SubjectItem(_Item):
    """One entry of the user's own code: skipped unless that may run, and expected to show what it
    records.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not self.corpus_run.allows_user_code:
            reason = "runs code of your own; add --fuzzshard-allow-user-code"
            self.add_marker(pytest.mark.skip(reason=reason))
        reason = "a recorded finding; delete its folder once it is gone"
        self.add_marker(pytest.mark.xfail(strict=False, raises=RecordedFinding, reason=reason))

    def runtest(self) -> None:
        """Check the model as the entry says, on ranks of its own."""
        state = self.corpus_run
        import_from_here()
        result = replay_subject(self.path, state.world.config, state.num_ranks, state.deadline)
        match result.outcome:
            case Outcome.FIXED:
                folder = shown_path(self.path.parent)
                pytest.fail(f"FIXED: {result.message}; delete {folder}", pytrace=False)
            case Outcome.SAME:
                raise RecordedFinding(result.message)
            case Outcome.SKIPPED | Outcome.INCONCLUSIVE:
                pytest.skip(f"{str(result.outcome).lower()}: {result.message}")
            case _:
                pytest.fail(f"{result.outcome}: {result.message}", pytrace=False)


def _reason(entry: CorpusEntry) -> str:
    """``"open: divergence/fully_shard/gradient, bad on torch 2.13.0, https://..."``; a known bug
    has its title.
    """
    mend = own_mends().get(entry.cause)
    what = f"{mend.title} ({entry.signature})" if mend is not None else entry.signature
    seen = f"bad on torch {', '.join(entry.bad_on)}" if entry.bad_on else ""
    lifecycle = entry.lifecycle or Lifecycle.OPEN
    return ", ".join(filter(None, (f"{lifecycle}: {what}", seen, entry.issue)))
