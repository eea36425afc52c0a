"""Every error a user can meet: one line of what happened, one line of what to do.

All errors derive from :class:`FuzzshardError`, carry the process exit code that the command line
documents, and survive pickling.
"""

from __future__ import annotations

from collections.abc import Iterable

EXIT_CLEAN = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_INFRA = 4
EXIT_INTERRUPTED = 130

_WORST_FIRST = (
    *(EXIT_FINDING, EXIT_INFRA, EXIT_USAGE),
    *(EXIT_INTERRUPTED, EXIT_INCONCLUSIVE, EXIT_CLEAN),
)


def worst_exit_code(codes: Iterable[int]) -> int:
    """Return the worst of several exit codes: a finding, then what failed. What is none of ours is
    a machine that failed; no code at all says that nothing was judged.
    """
    seen = {code if code in _WORST_FIRST else EXIT_INFRA for code in codes}
    return next((code for code in _WORST_FIRST if code in seen), EXIT_INCONCLUSIVE)


class FuzzshardError(Exception):
    """The root. ``problem`` says what happened, ``remedy`` what to do about it."""

    exit_code = EXIT_INFRA

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem


def did_you_mean(name: str = "") -> str:
    """Return the question whether ``name`` was meant, to follow a problem; empty for no name."""
    return f'. Did you mean "{name}"?' if name else ""


class InvalidCase(FuzzshardError):
    """A Case that describes no experiment: a width that does not fit, a path that is not there."""

    exit_code = EXIT_USAGE


class InvalidEntry(FuzzshardError):
    """A corpus entry that cannot be read: corrupt JSON, an unknown field, a newer format."""

    exit_code = EXIT_USAGE


class InvalidJournal(FuzzshardError):
    """A journal that cannot be read: a damaged file, a newer format, a database of somebody
    else.
    """

    exit_code = EXIT_USAGE


class InvalidMessage(FuzzshardError):
    """What another node of a fleet sent and may not send: a path outside of its own folder."""


class UsageError(FuzzshardError):
    """An option or an argument that does not make sense on this machine."""

    exit_code = EXIT_USAGE


class InfraError(FuzzshardError):
    """The machine or fuzzshard itself failed: no rank could start, the disk is full."""

    exit_code = EXIT_INFRA


MAX_INFRA_IN_A_ROW = 5
"""As many cases without a verdict say that the machine is broken, not the case."""


def check_infra_in_a_row(count: int, message: str) -> None:
    """Raises :class:`InfraError` when ``count`` cases in a row had no verdict, the last one for
    what ``message`` says, and that is too many.
    """
    if count >= MAX_INFRA_IN_A_ROW:
        raise InfraError(
            f"{count} cases in a row could not be judged, the last one for: {message}",
            "repair the machine and start again",
        )
