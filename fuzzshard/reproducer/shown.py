"""Whether a script that ran showed the very finding it was written for, or failed for another
reason.

Only with this can a script be run where it was not written: under another torch an import may
fail, or an argument be unknown, and none of that is the finding.
"""

from __future__ import annotations

import enum
import re
from typing import Protocol

from fuzzshard.identity import function, has_message, said, without_run

_RAISED = re.compile(
    r"^(?:\[rank\d+\]:\s?)?((?:\w+\.)*\w*(?:Error|Exception))(?::\s*(.*))?$", re.M
)

_RAISED_AS = r"(?m)^(?:\[rank\d+\]:\s?)?(?:\w+\.)*{}(?::|$)"
"""The line of an error whose class is known, which may be called anything, such as
``BackendCompilerFailed``.
"""

_OF_TORCHRUN = "ChildFailedError"

_NOT_A_LOST_RANK = (
    "AssertionError",
    "AttributeError",
    "ImportError",
    "ModuleNotFoundError",
    "TypeError",
)


class Ran(Protocol):
    """How a script ended, as far as it matters here."""

    @property
    def fails(self) -> bool:
        """Whether some rank ended with an error."""

    @property
    def output(self) -> str:
        """What all ranks and torchrun printed."""


class Shown(enum.StrEnum):
    """``OTHERWISE``: it failed, but not as the finding does."""

    YES = "shows the finding"
    NO = "does not show the finding"
    OTHERWISE = "fails for another reason"


def shown(result: Ran, signature: str, observed: str = "") -> Shown:
    """Return what ``result`` says of the finding with this ``signature``; without one, any failure
    shows it.

    A divergence fails an assertion, a crash raises the same class of error, with the message
    ``observed`` or in the same function of torch, which other versions may call otherwise
    (:mod:`fuzzshard.identity`); a death has its signal.
    """
    if not result.fails:
        return Shown.NO
    kind, _, rest = signature.partition("/")
    if not kind or _fails_so(result.output, kind, rest.partition("/")[2], observed):
        return Shown.YES
    return Shown.OTHERWISE


def _fails_so(output: str, kind: str, detail: str, observed: str) -> bool:
    classes = {name for name, _ in raised(output)}
    match kind:
        case "divergence":
            return "AssertionError" in classes
        case "crash":
            name, where = detail.partition(" in ")[0], re.escape(function(detail))
            same_message = has_message(observed) and said(observed) in without_run(output)
            is_raised = re.search(_RAISED_AS.format(re.escape(name)), output) is not None
            return is_raised and (
                same_message or re.search(rf"\bin _*{where}\b", output) is not None
            )
        case "death":
            return detail in output
        case _:
            return classes.isdisjoint(_NOT_A_LOST_RANK)


def raised(output: str) -> list[tuple[str, str]]:
    """Return the classes and messages of the errors that tracebacks end with, but torchrun's own,
    each once.
    """
    found = [(name.rpartition(".")[2], message) for name, message in _RAISED.findall(output)]
    return [pair for pair in dict.fromkeys(found) if pair[0] != _OF_TORCHRUN]


def last_error(output: str) -> str:
    """Return the error that the script ended with, in one line."""
    errors = raised(output)
    if not errors:
        return "no error was printed"
    name, message = errors[-1]
    return f"{name}: {' '.join(message.split())}"[:300].rstrip(": ")
