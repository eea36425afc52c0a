"""What goes wrong, for the first lines of a script."""

from __future__ import annotations

import textwrap

from fuzzshard.reproducer.aim import Aim
from fuzzshard.verdict import Finding

_WIDTH = 100


def story(aim: Aim, signature: str, finding: Finding | None, num_ranks: int, torch_version: str) -> str:
    """The comment at the top: how to run the script, what it shows, when it fails."""
    sentences = [*_sentences(aim, signature, finding), f"Found with torch {torch_version}."]
    sentences.append("Exits 1 while this is so, 0 when it is fixed.")
    text = textwrap.wrap(" ".join(sentences), _WIDTH, break_long_words=False, break_on_hyphens=False)
    run = f"torchrun --standalone --nproc-per-node {num_ranks} repro.py"
    return "\n".join(f"# {line}" for line in [run, *text])


def _sentences(aim: Aim, signature: str, finding: Finding | None) -> list[str]:
    if finding is None:
        known = f"Shows {signature}." if signature else f"Shows no known bug of {aim.engine}."
        return [known] if aim.kind != "compare" else [known, f"Compares {aim.engine} with {_TRUTH}."]
    what = f"Observed: {_one_line(finding.observed)}. Expected: {_one_line(finding.expected)}."
    match aim.kind:
        case "raise":
            return [f"{aim.engine} raises {_one_line(finding.observed)}."]
        case "desync":
            return [f"Under {aim.engine} the ranks lose each other: {_one_line(finding.observed)}."]
        case "registration":
            return [f"{aim.engine} registers {finding.name} other than documented. {what}"]
        case "collectives":
            return [f"Under {aim.engine} the ranks do not issue the same collectives."]
        case "replicas":
            return [f"Under {aim.engine} the ranks end with different parameters."]
        case "compare":
            return [f"{_thing(finding)} differs between {aim.engine} and {_TRUTH}. {what}"]


_TRUTH = "the plain model with an all-reduce of its gradients"


def _thing(finding: Finding) -> str:
    match finding.oracle:
        case "gradient":
            return f"The gradient of {finding.name}"
        case "input_gradient":
            return f"The gradient of {finding.name}"
        case "parameter":
            return f"{finding.name} after the optimizer step"
        case "registered_parameter":
            return f"{finding.name} after the forward"
        case "buffer":
            return f"The buffer {finding.name}"
        case "loss":
            return "The loss"
        case _:
            return finding.name[:1].upper() + finding.name[1:]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300].rstrip(".")
