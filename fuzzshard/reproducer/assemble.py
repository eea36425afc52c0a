"""Assembles the script from the model's source, the helpers it needs, one program and one
verdict.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fuzzshard.analysis.dtypes import FINER, last_bit, loose_comparison, with_unrounded_steps
from fuzzshard.case.case import Case
from fuzzshard.contracts import installed_torch
from fuzzshard.errors import UsageError
from fuzzshard.program.imports import import_block
from fuzzshard.reproducer.assertion import SEEDS
from fuzzshard.reproducer.from_finding import LEAST_MARGIN, assertion_of
from fuzzshard.reproducer.header import header
from fuzzshard.reproducer.reduce import patched
from fuzzshard.reproducer.writer import Writer
from fuzzshard.verdict import Finding


def scripts(
    case: Case, *, signature: str, findings: Sequence[Finding], torch_version: str = ""
) -> Iterator[str]:
    """Yield scripts that may show a finding, the one that reads best first: run them, and keep the
    first that does.

    For the primary one of ``findings``, then for others, which the same cause has broken; with
    values of one seed, then of others. Raises :class:`UsageError` where none can be written.
    """
    written = set()
    obstacle: UsageError | None = None
    for finding, seed in _ways(findings):
        try:
            text = script(
                case,
                signature=signature,
                finding=finding,
                torch_version=torch_version,
                seed=seed,
            )
        except UsageError as error:
            obstacle = error
            continue
        if text not in written:
            written.add(text)
            yield text
    if obstacle and not written:
        raise obstacle


def _ways(findings: Sequence[Finding]) -> Iterator[tuple[Finding | None, int]]:
    """Yield what :func:`scripts` look at, and the seeds of their values, in order."""
    first_of_each = {finding.oracle: finding for finding in reversed(findings)}
    offered: list[Finding | None] = [
        finding for finding in findings if finding is first_of_each[finding.oracle]
    ]
    for finding in offered or [None]:
        is_number = finding is not None and finding.error is not None
        for seed in SEEDS if is_number else SEEDS[:1]:
            yield finding, seed


def script_like(
    text: str,
    case: Case,
    other: Case,
    *,
    signature: str,
    findings: Sequence[Finding],
    moved: int = 0,
) -> str | None:
    """Return what makes a script of ``other`` of one of ``case``, done to ``text``: a script of
    ``case``, reduced or not.

    The op that is looked at is ``moved`` so many places in ``other``. None where this version
    writes no such scripts, or ``text`` has other lines there.
    """
    for finding, seed in _ways(findings):
        with contextlib.suppress(UsageError):
            written = script(case, signature=signature, finding=finding, seed=seed)
            there = finding and replace(finding, op=finding.op + moved)
            changed = script(other, signature=signature, finding=there, seed=seed)
            if (patch := patched(written, changed, text)) is not None:
                return patch
    return None


def body(text: str) -> list[str]:
    """Return the lines of a script below the comment at its top."""
    return list(itertools.dropwhile(lambda line: line.startswith("#"), text.splitlines()))


def script(
    case: Case,
    *,
    signature: str = "",
    finding: Finding | None = None,
    torch_version: str = "",
    seed: int = 0,
) -> str:
    """Return the text of ``repro.py``, which exits with 1 where ``case`` shows ``finding``.

    With a finding it looks at the very tensors and the op that the finding names, and requires
    what the finding's comparison requires. From a ``signature`` alone it looks at everything of
    that kind; with neither it compares all tensors. Values of this ``seed`` may not show it.
    ``torch_version`` is that of the finding, by default the installed one. Raises
    :class:`UsageError` where nothing but replaying the case shows the finding, and where writing
    it fails: what a file says of a finding may be true of no case.
    """
    try:
        return _script(case, signature, finding, torch_version, seed)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"writing a script failed: {error!r}", "replay the case") from error


def _script(
    case: Case, signature: str, finding: Finding | None, torch_version: str, seed: int
) -> str:
    case, finding = _in_a_precision_that_shows(case, finding)
    assertion = assertion_of(case, signature, finding, seed)
    if assertion.trains_reference:  # what a coarser dtype rounds differs between any two models
        case = with_unrounded_steps(case)
    version = torch_version or installed_torch()
    body = Writer(case, assertion).text()
    top = header(assertion, signature, finding, case.mesh.size, version)
    return f"{top}\n{import_block(body)}\n\n\n{body}\n"


def _in_a_precision_that_shows(case: Case, finding: Finding | None) -> tuple[Case, Finding | None]:
    """Return what the script trains: the case itself if the error stands out from what rounding
    does there, else the finer run that it was judged in.

    The bound that was measured there grows as the last bit does.
    """
    if finding is None or not finding.precise or not finding.bound or finding.error is None:
        return case, finding
    precise = FINER[finding.precise](case)
    bound = finding.bound * last_bit(case) / last_bit(precise)
    if finding.error > LEAST_MARGIN * bound:
        return case, replace(finding, bound=bound, comparison=loose_comparison(case))
    return precise, finding
