"""The standalone scripts of an entry, or a comment that says why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from fuzzshard.case.case import Case
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import NO_SCRIPT
from fuzzshard.errors import UsageError
from fuzzshard.printable import comment
from fuzzshard.reproducer.shown import Ran, Shown, shown
from fuzzshard.verdict import Finding


class ScriptRender(Protocol):
    """Standalone scripts that may show a finding, the one that reads best first."""

    def __call__(
        self, case: Case, *, signature: str, findings: Sequence[Finding], torch_version: str = ""
    ) -> Iterable[str]:
        """Python sources that need torch only; raises :class:`UsageError` where none can be
        written.

        ``torch_version`` is what the finding was seen with, by default the installed one.
        """


class ScriptCheck(Protocol):
    """Runs the reproducer at ``path`` on ``num_ranks`` ranks, as a user would, and kills it when
    it is ``wanted`` no more.
    """

    def __call__(
        self,
        path: Path,
        num_ranks: int,
        *,
        preload: tuple[Path, ...] = (),
        wanted: Callable[[], bool] = lambda: True,
    ) -> Ran:
        """Raises nothing for a script that fails: that is its purpose."""


class ScriptReduction(Protocol):
    """Takes away what a script does without, as far as it comes in time."""

    def __call__(
        self,
        entry: CorpusEntry,
        script: str,
        *,
        preload: tuple[Path, ...] = (),
    ) -> str:
        """Return a script that was run and fails for the same reason; maybe ``script`` itself."""


def scripts_of(entry: CorpusEntry, render: ScriptRender) -> Iterable[str]:
    """Return scripts that may show the finding of ``entry``; raises :class:`UsageError` where
    there are none.
    """
    return render(
        entry.case, signature=entry.signature, findings=entry.findings, torch_version=entry.torch
    )


def script_of(entry: CorpusEntry, render: ScriptRender) -> str:
    """Return the script that reads best, or why none can be made."""
    try:
        return next(iter(scripts_of(entry, render)))
    except UsageError as error:
        return f"{NO_SCRIPT}: {comment(str(error))}\n"
    except Exception as error:
        return f"{NO_SCRIPT}: {comment(repr(error))}\n"


def shown_by(outcome: Ran, entry: CorpusEntry) -> Shown:
    """Return whether a script of ``entry`` showed its finding, or failed for another reason."""
    return shown(outcome, entry.signature, entry.findings[0].observed if entry.findings else "")
