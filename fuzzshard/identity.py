"""Whether a verdict shows a finding that was recorded, under the same release of torch or under
another.

Under one release the signature says it. Between two, functions of torch are renamed, split and
inlined and checks move from one to the next, while the finding stays what it was. So a crash that
another release has recorded is there where the same engine crashes in the same function, with
whatever class of error, or with the same message, wherever that is raised now. Underscores before
a name do not count, nor does in a message what belongs to one run: numbers, shapes, addresses,
places in files, modules in quotes with a number each.

Instruments see more of one release than of another, so what a user sees decides where anything
does: findings are compared without those of class internal
(:attr:`fuzzshard.verdict.Finding.internal`).

Nothing else has parts that torch names: a wrong value is told by the oracle that sees it, a death
by its signal, and a lost collective has one signature, be it a hang, an abort or a reset
connection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fuzzshard.verdict import Finding, Verdict, signature_of

_OF_ONE_RUN = (
    (re.compile(r"\b0x[0-9a-f]+", re.IGNORECASE), "ADDRESS"),
    (re.compile(r"\S+\.(?:py|cpp|h|cu)(?:\"?, line |:)\d+"), "PLACE"),
    (re.compile(r"(?:torch\.Size\()?[\[(](?:\d+(?:, ?\d+)*,?)?[\])]\)?"), "SHAPE"),
    (re.compile(r"""(['"])(?:\w+\.)*[A-Za-z_]+\d+(?:\.\w+)*\1"""), "NAME"),
    (re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)"), "N"),
)
"""What differs between two runs of one error, and what stands for it. ``c10::Half`` is no
number.
"""


def shows(verdict: Verdict, signature: str, elsewhere: Sequence[Finding] = ()) -> bool:
    """Return whether ``verdict`` is the finding with this ``signature``.

    ``elsewhere`` has the findings that another release of torch has shown it with, the primary one
    first; it is empty where the same release has.
    """
    if verdict.signature == signature:
        return True
    if not elsewhere or not verdict.findings:
        return False
    seen, recorded = (
        [f for f in all_of if not f.internal] for all_of in (verdict.findings, elsewhere)
    )
    if not seen or not recorded:
        return False
    now, before = signature_of(seen), signature_of(recorded)
    return now == before or (
        _is_crash(now) and _is_crash(before) and _same_error(seen[0], recorded[0])
    )


def _is_crash(signature: str) -> bool:
    return signature.startswith("crash/")


def _same_error(one: Finding, other: Finding) -> bool:
    if one.engine != other.engine:
        return False
    same_message = has_message(one.observed) and said(one.observed) == said(other.observed)
    return same_message or function(one.detail) == function(other.detail)


def said(error: str) -> str:
    """Return the first line of an error, without what belongs to one run."""
    return without_run(next(iter(error.strip().splitlines()), ""))


def without_run(text: str) -> str:
    """Return ``text`` without numbers, shapes, addresses, places in files and names of modules."""
    for pattern, stand_in in _OF_ONE_RUN:
        text = pattern.sub(stand_in, text)
    return text


def has_message(error: str) -> bool:
    """Return whether an error says more than its class, as ``"AssertionError: "`` does not."""
    return bool(error.partition(":")[2].strip())


def function(detail: str) -> str:
    """Return the function that raised, without underscores before its name: ``"RuntimeError in
    _chunk_cat"``.
    """
    return detail.rpartition(" in ")[2].lstrip("_")
