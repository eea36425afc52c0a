"""What goes wrong, for the first lines of a script."""

from __future__ import annotations

import textwrap

from fuzzshard.reproducer.aim import Aim
from fuzzshard.verdict import MISSING, Finding

_WIDTH = 108


def story(
    aim: Aim, signature: str, finding: Finding | None, num_ranks: int, torch_version: str
) -> str:
    """The comment at the top: how to run the script, what it shows, when it fails."""
    text = f"{_what(aim, signature, finding)} Found with torch {torch_version}."
    wrapped = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    run = (
        f"torchrun --standalone --nproc-per-node {num_ranks} repro.py  (exits 1 while this is so)"
    )
    return "\n".join(f"# {line}" for line in [run, *wrapped])


def _what(aim: Aim, signature: str, finding: Finding | None) -> str:
    if finding is None:
        known = f" ({signature})" if signature else ""
        if aim.trains_reference:
            return f"{aim.engine} differs from {_TRUTH}{known}."
        return f"{aim.engine} breaks a rule{known}."
    observed, expected = _one_line(finding.observed), _one_line(finding.expected)
    match aim.kind:
        case "relation":
            what = f"{_thing(finding)} under {aim.engine}"
            return (
                f"{what} depends on what must not "
                f"matter{'' if aim.seeded else ': ' + _observed(finding)}."
            )
        case "error" | "warning":
            return f"Under {aim.engine}: observed {observed}, expected {expected}."
        case "communication" | "hooks":
            where = f" ({aim.name})" if aim.name else ""
            return (
                f"{aim.engine} in the last op here{where}: observed {observed}, expected "
                f"{expected}."
            )
        case "raise":
            verb = "raises" if finding.oracle == "exception" else "kills its process:"
            return f"{aim.engine} {verb} {observed}."
        case "desync":
            return f"Under {aim.engine} the ranks lose each other: {observed}."
        case "registration":
            what = f"{aim.engine} registers {finding.name} other than documented"
        case "collectives":
            return f"Under {aim.engine} the ranks do not issue the same collectives."
        case "held" if finding.oracle == "unreduced_gradient":
            return (
                f"{_thing(finding)} under {aim.engine}: observed {observed}, expected {expected}."
            )
        case "held" | "outlives":
            return (
                f"What {aim.engine} leaves behind of {finding.name}: {observed}, expected "
                f"{expected}."
            )
        case "replicas":
            return f"Under {aim.engine} the ranks end with different parameters."
        case "presence":
            wanted = (
                "has no gradient and should"
                if aim.expected == MISSING
                else "has a gradient and should not"
            )
            if aim.oracles == ("resume",):
                wanted = "is lost" if aim.expected == MISSING else "is there and should not be"
            return (
                f"Under {aim.engine} {finding.name} {wanted}: observed {observed}, expected "
                f"{expected}."
            )
        case "type":
            return (
                f"{_thing(finding)} under {aim.engine}: observed {observed}, expected {expected}."
            )
        case "accumulation":
            what = (
                f"{_thing(finding)} under {aim.engine} is not the sum of what each microbatch "
                "leaves alone"
            )
        case "compare" if finding.oracle == "unreduced_gradient":
            what = (
                f"{_thing(finding)} under {aim.engine} is not what plain training adds up on "
                "the rank"
            )
        case "compare":
            what = f"{_thing(finding)} under {aim.engine} is not that of {_TRUTH}"
    if aim.seeded and finding.error is not None:
        return f"{what}."  # the numbers are those of other values
    return f"{what}: observed {observed}, expected {expected}."


def _observed(finding: Finding) -> str:
    return f"{_one_line(finding.observed)} in place of {_one_line(finding.expected)}"


_TRUTH = "plain training with an all-reduce"


def _thing(finding: Finding) -> str:
    match finding.oracle:
        case "local_gradient":
            return f"The gradient of {finding.name} that adds up without synchronisation"
        case "unreduced_gradient":
            return f"The gradient of {finding.name} that waits for its reduction"
        case "gradient":
            return f"The gradient of {finding.name}"
        case "input_gradient":
            return f"The gradient of {finding.name}"
        case "parameter":
            return f"{finding.name} after the optimizer step"
        case "resume":
            return f"{finding.name} after saving, corrupting or loading"
        case "state_dict":
            return f"{finding.name} in the state dict"
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
