"""The comment at the top of a script."""

from __future__ import annotations

import itertools
import re
import textwrap

from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines import ENGINES, spec_of
from fuzzshard.parts.oracle import TensorOracle, cut, without_remarks
from fuzzshard.printable import comment
from fuzzshard.reproducer.assertion import Assertion
from fuzzshard.verdict import Finding

_WIDTH = 108


def header(
    assertion: Assertion,
    signature: str,
    finding: Finding | None,
    num_ranks: int,
    torch_version: str,
) -> str:
    """Say in a comment how to run the script, what it shows and when it fails.

    Without a finding and a signature it says what the case should do.
    """
    run = f"torchrun --standalone --nproc-per-node {num_ranks} repro.py"
    if finding is None and not signature:
        run += "  (exits 0 while this is so, 1 otherwise)"
        text = f"Under {_engine(assertion)} everything is as in {_TRUTH}."
    else:
        run += "  (exits 1 while this is so)"
        text = f"{_what(assertion, signature, finding)} Found with torch {torch_version}."
        if finding is not None and finding.doubt:
            text += f" In fuzzshard {finding.doubt}."
    return _wrapped(run, comment(text))


def of_what_is_there(text: str) -> str:
    """Return a script whose first comment tells nothing of what was taken out of the script."""
    lines = text.splitlines()
    top = [*itertools.takewhile(lambda line: line.startswith("#"), lines)]
    body = "\n".join(lines[len(top) :])
    run, *said = (line.removeprefix("# ") for line in top)
    told = " ".join(said)
    for spec in ENGINES.values():
        title = re.escape(_title(spec))
        if any(name not in body for name in re.findall("`(.+?)`", spec.title)):
            told = re.sub(rf"^Under {title}: | under {title}(?= (is|differs))", "", told)
    if "all_reduce" not in body:
        told = told.replace(" with an all-reduce", "")
    return f"{_wrapped(run, told[:1].upper() + told[1:])}\n{body}\n"


def _wrapped(run: str, text: str) -> str:
    wrapped = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in [run, *wrapped])


def _engine(assertion: Assertion) -> str:
    return _title(spec_of(assertion.engine))


def _title(spec: EngineSpec) -> str:
    """Return the name of an engine that its users know."""
    return spec.title.replace("`", "")


def _what(assertion: Assertion, signature: str, finding: Finding | None) -> str:
    if finding is None:
        if assertion.trains_reference:
            return f"{_engine(assertion)} differs from {_TRUTH} ({signature})."
        return f"{_engine(assertion)} breaks a rule ({signature})."
    rule = finding.rule
    if isinstance(rule, TensorOracle) and finding.error is not None:
        return f"{rule.said(finding)} under {_engine(assertion)} is not that of {_TRUTH}."
    observed, expected = _one_line(finding.observed), _one_line(finding.expected)
    headline = _one_line(rule.headline(finding, ends="end"))
    named = f" ({finding.name})" if finding.name and finding.name not in headline else ""
    told = ""
    if not (rule.loses or observed in headline):
        told = f": observed {observed}, expected {expected}"
    return f"Under {_engine(assertion)}: {headline}{named}{told}."


_TRUTH = "plain training with an all-reduce"


def _one_line(text: str) -> str:
    return cut(" ".join(without_remarks(text).split()), 300).removesuffix(".").removesuffix(":")
