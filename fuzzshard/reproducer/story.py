"""What goes wrong, for the first lines of a script."""

from __future__ import annotations

import textwrap

from fuzzshard.model.statements import comment
from fuzzshard.parts.oracle import MISSING, TensorOracle, cut
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
    observed, expected = _one_line(finding.observed), _one_line(finding.expected)
    thing = f"{_thing(finding)} under {aim.engine}"
    match aim.kind:
        case "error" | "heard":
            return f"Under {aim.engine}: observed {observed}, expected {expected}."
        case "raise":
            verb = "raises" if finding.rule.loses == "raised" else "kills its process:"
            return f"{aim.engine} {verb} {observed}."
        case "desync":
            return f"Under {aim.engine} the ranks lose each other: {observed}."
        case "alone":
            where = f" ({aim.name})" if aim.name else ""
            said = {"engine": aim.engine, "name": finding.name, "thing": _thing(finding)}
            return aim.rule.shown.format(where=where, observed=observed, expected=expected, **said)
        case "presence":
            missing = aim.expected == MISSING
            wanted = "has no gradient and should" if missing else "has a gradient and should not"
            if aim.oracles[0].is_state:
                wanted = "is lost" if missing else "is there and should not be"
            return (
                f"Under {aim.engine} {finding.name} {wanted}: observed {observed}, expected "
                f"{expected}."
            )
        case "type":
            return f"{thing}: observed {observed}, expected {expected}."
        case "compare" if finding.error is not None:  # the numbers are those of other values
            return f"{thing} is not that of {_TRUTH}."
        case "compare":
            told = f"observed {observed}, expected {expected}"
            return f"{thing} is not that of {_TRUTH}: {told}."


_TRUTH = "plain training with an all-reduce"


def _thing(finding: Finding) -> str:
    rule = finding.rule
    return rule.said(finding) if isinstance(rule, TensorOracle) else finding.name


def _one_line(text: str) -> str:
    return cut(" ".join(text.split()), 300).removesuffix(".").removesuffix(":")
