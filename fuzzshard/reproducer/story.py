"""What goes wrong, for the first lines of a script."""

from __future__ import annotations

import textwrap

from fuzzshard.model.statements import comment
from fuzzshard.parts.oracle import TensorOracle, cut
from fuzzshard.reproducer.aim import Aim
from fuzzshard.verdict import Finding

_WIDTH = 108


def story(
    aim: Aim, signature: str, finding: Finding | None, num_ranks: int, torch_version: str
) -> str:
    """The comment at the top: how to run the script, what it shows, when it fails.

    Without a finding and a signature it says what the case should do.
    """
    run = f"torchrun --standalone --nproc-per-node {num_ranks} repro.py"
    if finding is None and not signature:
        run += "  (exits 0 while this is so, 1 otherwise)"
        text = f"Under {aim.engine} everything is as in {_TRUTH}."
    else:
        run += "  (exits 1 while this is so)"
        text = f"{_what(aim, signature, finding)} Found with torch {torch_version}."
        if finding is not None and finding.doubt:
            text += f" In fuzzshard {finding.doubt}."
    text = comment(text)
    wrapped = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in [run, *wrapped])


def _what(aim: Aim, signature: str, finding: Finding | None) -> str:
    if finding is None:
        if aim.trains_reference:
            return f"{aim.engine} differs from {_TRUTH} ({signature})."
        return f"{aim.engine} breaks a rule ({signature})."
    rule = finding.rule
    if isinstance(rule, TensorOracle) and finding.error is not None:
        return f"{rule.said(finding)} under {aim.engine} is not that of {_TRUTH}."
    observed, expected = _one_line(finding.observed), _one_line(finding.expected)
    headline = _one_line(rule.headline(finding, ends="end"))
    named = f" ({finding.name})" if finding.name and finding.name not in headline else ""
    told = ""
    if not (rule.loses or observed in headline):
        told = f": observed {observed}, expected {expected}"
    return f"Under {aim.engine}: {headline}{named}{told}."


_TRUTH = "plain training with an all-reduce"


def _one_line(text: str) -> str:
    return cut(" ".join(text.split()), 300).removesuffix(".").removesuffix(":")
