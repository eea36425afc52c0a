"""The comment at the top of a script."""

from __future__ import annotations

import textwrap

from fuzzshard.model.statements import comment
from fuzzshard.parts.oracle import TensorOracle, cut
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
        text = f"Under {assertion.engine} everything is as in {_TRUTH}."
    else:
        run += "  (exits 1 while this is so)"
        text = f"{_what(assertion, signature, finding)} Found with torch {torch_version}."
        if finding is not None and finding.doubt:
            text += f" In fuzzshard {finding.doubt}."
    text = comment(text)
    wrapped = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in [run, *wrapped])


def _what(assertion: Assertion, signature: str, finding: Finding | None) -> str:
    if finding is None:
        if assertion.trains_reference:
            return f"{assertion.engine} differs from {_TRUTH} ({signature})."
        return f"{assertion.engine} breaks a rule ({signature})."
    rule = finding.rule
    if isinstance(rule, TensorOracle) and finding.error is not None:
        return f"{rule.said(finding)} under {assertion.engine} is not that of {_TRUTH}."
    observed, expected = _one_line(finding.observed), _one_line(finding.expected)
    headline = _one_line(rule.headline(finding, ends="end"))
    named = f" ({finding.name})" if finding.name and finding.name not in headline else ""
    told = ""
    if not (rule.loses or observed in headline):
        told = f": observed {observed}, expected {expected}"
    return f"Under {assertion.engine}: {headline}{named}{told}."


_TRUTH = "plain training with an all-reduce"


def _one_line(text: str) -> str:
    return cut(" ".join(text.split()), 300).removesuffix(".").removesuffix(":")
