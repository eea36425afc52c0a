"""The standalone script of an entry, or a comment that says why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fuzzshard.case.case import Case
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.errors import UsageError
from fuzzshard.verdict import Finding

NO_SCRIPT = "# No reproducer could be generated"


class ScriptRender(Protocol):
    """The standalone script that shows a finding."""

    def __call__(
        self, case: Case, *, signature: str, finding: Finding | None, torch_version: str = ""
    ) -> str:
        """Python source that needs torch only, found with ``torch_version`` or else the installed one."""


class ScriptOutcome(Protocol):
    """What running a reproducer says."""

    @property
    def fails(self) -> bool:
        """Whether the script showed the finding."""


class ScriptCheck(Protocol):
    """Runs the reproducer at ``path`` on ``num_ranks`` ranks, as a user would."""

    def __call__(
        self, path: Path, num_ranks: int, *, preload: tuple[Path, ...] = (), timeout: float = 120
    ) -> ScriptOutcome:
        """Raises nothing for a script that fails: that is its purpose."""


def script_of(entry: CorpusEntry, render: ScriptRender) -> str:
    """The script; a finding is worth keeping even where none can be made of it."""
    try:
        return render(entry.case, signature=entry.signature, finding=next(iter(entry.findings), None))
    except UsageError as error:
        return f"{NO_SCRIPT}: {error}\n"
    except Exception as error:
        return f"{NO_SCRIPT}: {error!r}\n"
