"""The sentences of a draft: its title, how bad it is, what goes wrong and for whom, and why one
side must be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.corpus.entry import CONTRACT, LOOKED_UP, CorpusEntry
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.drafts.evidence import Evidence
from fuzzshard.mending.mend import Mend, own_mends
from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.oracle import (
    MISSING,
    UNEXPECTED,
    Severity,
    TensorOracle,
    TensorType,
    cut,
    without_remarks,
)
from fuzzshard.reproducer.check import ranks_needed
from fuzzshard.verdict import Finding, Status

_TELLING = (
    *("op:", "schedule:no_", "schedule:partial_sync", "offload:", "prefetch:", "precision:"),
    *("compile:", "checkpoint:", "reuse:", "tensor:", "fsdp1:", "reshard:int", "reshard:false"),
    *("shard:", "wrap:list_group", "wrap:root_not_wrapped", "option:", "mesh:hsdp"),
    *("mesh:axis_of_one", "freeze:", "edge:unused", "edge:method", "edge:iadd", "schedule:"),
    *("optimizer:exclude", "dim:uneven", "returns:", "input:"),
)
"""Beginnings of the features that a title may name, the most telling first."""

_TITLE_LENGTH = 120

_TAGS = {"checkpoint": "checkpoint", "compile": "torch.compile", "other": ""}
"""What titles begin with, of components that are no engine; the others go by their own names."""

_IMPACT = {
    Severity.SILENT: "Silent wrong result: nothing is raised, and training goes on with it.",
    Severity.HANG: "Hang: ranks wait for each other, or lose each other, and training stops.",
    Severity.CRASH: "Crash: an error is raised, and training stops.",
    Severity.LEAK: "Leak: memory, or an object that holds it, is kept after its last use.",
    Severity.WARNING: "A warning that is wrong; results are right.",
    Severity.LAYOUT: "Nothing is raised, and training goes on. No value is wrong by itself.",
    Severity.INTERNAL: "Private state of torch is wrong; no user sees it by itself.",
}
"""What the severities of findings mean to whoever reads of one."""

_OF_TYPE = "Silent: nothing is raised, and training goes on with a tensor of another type."


def engine_name(engine: str) -> str:
    """Return an engine by the name that its users know."""
    return ENGINES[engine].title if engine in ENGINES else engine


def accused(entry: CorpusEntry, script: str | None) -> str:
    """Return the engine that is wrong, in the words of its users; empty where plain torch is.

    That is so where the cause is in another component of torch, and where nobody knows the cause
    and the script shows the finding without the engine.
    """
    engine = entry.findings[0].engine
    title = engine_name(engine)
    if (mend := own_mends().get(entry.cause)) is not None:
        return title if mend.component.lower() in ENGINES else ""
    return title if script is None or title.strip("`") in script else ""


def _tag(entry: CorpusEntry, script: str | None) -> str:
    if (mend := own_mends().get(entry.cause)) is not None:
        component = mend.component.lower()
        return ENGINES[component].tag if component in ENGINES else _TAGS.get(component, component)
    engine = entry.findings[0].engine
    return ENGINES[engine].tag if engine in ENGINES and accused(entry, script) else ""


def conditions(entry: CorpusEntry, cause: Collection[str]) -> list[str]:
    """Return what it takes, in words; the most telling first."""
    ordered = [
        name
        for prefix in _TELLING
        for name in FEATURES
        if name in cause and name.startswith(prefix)
    ]
    told = [pair for group in reversed(entry.case.wrap) for pair in group.told()]
    words = FEATURES | {k: v for o, value in told for k, v in o.means(value).items()}
    return list(dict.fromkeys(words[name] for name in ordered))


def title(entry: CorpusEntry, cause: Collection[str], script: str | None = None) -> str:
    """Return ``[FSDP2] <API>: <wrong result> when <condition>``.

    What is known of the cause says it best. Of an entry without one the API is the engine, and the
    condition lists what the case cannot do without, as far as there is room.
    """
    tag = _tag(entry, script)
    before = f"[{tag}] " if tag else ""
    if (mend := own_mends().get(entry.cause)) is not None:
        told = re.sub(rf"^{re.escape(tag)}\b:? ", "", mend.title) if tag else mend.title
        return cut(f"{before}{told}", _TITLE_LENGTH)
    api = accused(entry, script).strip("`")
    first = entry.findings[0]
    text = cut(f"{before}{f'{api}: ' if api else ''}{_headline(entry, first)}", _TITLE_LENGTH)
    told = ""
    for each in conditions(entry, cause):
        longer = f"{told}, {each}" if told else each
        if len(f"{text} with {longer}") > _TITLE_LENGTH:
            break
        told = longer
    return f"{text} with {told}" if told else text


def _headline(entry: CorpusEntry, first: Finding) -> str:
    return first.rule.headline(first, ends="die" if entry.status is Status.CRASH else "hang")


def impact(entry: CorpusEntry) -> str:
    """Return how bad it is; and that the newest release is right, where it is."""
    severity = entry.severity
    assert severity is not None, "an entry without a finding has no draft"
    of_type = severity is Severity.SILENT and TensorType.read(entry.findings[0].observed)
    said = _OF_TYPE if of_type else _IMPACT[severity]
    if entry.lifecycle is Lifecycle.FIXED and entry.good_on:
        newest = entry.good_on[-1]
        said += f" **Torch {newest}, the newest that was tried, does not show it.**"
    return said


def who(entry: CorpusEntry, cause: Collection[str], mend: Mend | None) -> str:
    """Return who runs into it; where nobody has thought about that, what it takes."""
    if mend is not None and mend.setup:
        return markdown(mend.setup)
    told = conditions(entry, cause)
    return f"Programs with {'all of ' if told[1:] else ''}this: {'; '.join(told)}." if told else ""


def summary(entry: CorpusEntry, script: str | None) -> str:
    """Return one paragraph: what goes wrong, in which kind of program.

    Numbers are the script's to print: those of the case are of other values. Without a script
    they stand where it first differs.
    """
    first, engine = entry.findings[0], accused(entry, script)
    observed = " ".join(without_remarks(first.observed).split()).rstrip(".")
    rule, where = first.rule, _after(entry, first)
    on = "In one process" if is_alone(script) else f"On {ranks(entry)}"
    under = f"{on} with {engine}" if engine else on
    if rule.sentence:
        training = f"{on}, training{f' with {engine}' if engine else ''}"
        what = rule.sentence.format(who=training, observed=observed, brief=cut(observed, 400))
    elif isinstance(rule, TensorOracle) and first.error is not None:
        thing = rule.said(first)
        where = "" if " after " in thing else where
        told = "; the script prints both" if script and "{expected}" in script else ""
        without = f"without {engine}" if engine else "trained in the plain way"
        thing = thing[:1].lower() + thing[1:]
        what = f"{under}, {thing}{where} is not that of the same model {without}{told}."
    else:
        name = f" (`{first.name}`{where})" if first.name else where
        start = f"{under}, the " if isinstance(rule, TensorOracle) else f"{under}: "
        what = f"{start}{_headline(entry, first)}{name}."
    return what + rule.consequence(first)


def _after(entry: CorpusEntry, first: Finding) -> str:
    """Return the kind of statement after which it is looked at: the script has its own lines."""
    schedule = entry.case.schedule
    return f" after {schedule[first.op].noun()}" if 0 <= first.op < len(schedule) else ""


def ranks(entry: CorpusEntry) -> str:
    """Return ``"2 ranks"``, with the mesh where it has several axes."""
    size = entry.case.mesh.size
    axes = f" (mesh {entry.mesh})" if " x " in entry.mesh else ""
    return f"{size} rank{'s' * (size > 1)}{axes}"


def command(script: str) -> str:
    """Return the command that runs a script, as its first line says."""
    return script.partition("\n")[0].removeprefix("# ").partition("  ")[0]


def is_alone(script: str | None) -> bool:
    """Tell whether a script needs no torchrun."""
    return script is not None and command(script).startswith("python ")


def setup(entry: CorpusEntry, script: str | None) -> str:
    """Say on what a script runs."""
    if is_alone(script):
        return "in one process"
    size = entry.case.mesh.size if script is None else ranks_needed(script)
    where = ""
    if script is None or "device_count()" in script:
        where = " (GPUs if there are enough, else the CPU with gloo)"
    elif "cuda" not in script:
        where = " with gloo on the CPU"
    return f"on {size} rank{'s' * (size > 1)}{where if entry.device == 'cpu' else ''}"


_PRIVATE = re.compile(
    r"\btorch[\w.]*\._\w+|\bimport .*\b_\w+|_get_fsdp_state|\b\w+\._(?!exit\b)[a-z]\w*"
)
"""What a script has that reaches into private parts of torch; all end by ``os._exit``."""


def private_names(script: str) -> list[str]:
    """Return the private names of torch that a script reads or replaces, each once."""
    found = _PRIVATE.findall(script)
    return list(dict.fromkeys(text.removeprefix("import ") for text in found))


def reasons(entry: CorpusEntry, script: str | None, evidence: Evidence) -> Iterator[str]:
    """Yield why it is a bug, and which side is wrong, by what was run or a document says."""
    first = entry.findings[0]
    mend = own_mends().get(entry.cause)
    wrong = accused(entry, script)
    if wrong or mend is None:
        wrong = wrong or "torch itself, without any of its parallel engines,"
        yield f"{wrong} is wrong: {_rule(first, script)}"
    if contract := mend.contract.text() if mend is not None else entry.notes.get(CONTRACT):
        yield f"Documented: {markdown(contract)}"
    if first.error is not None and first.bound:
        ratio = first.error / first.bound
        yield (
            f"The difference is {first.error:.3g}. Rounding explains at most {first.bound:.3g}, "
            f"{ratio:.1e} times less."
        )
    if evidence.exactly is not None and evidence.exactly.error is not None:
        bound = evidence.exactly.bound
        explained = f"; rounding explains at most {bound:.1e} there" if bound else ""
        yield f"In float64 the difference is still {evidence.exactly.error:.3g}{explained}."
    if evidence.peer:
        peer = engine_name(evidence.peer)
        yield f"{peer} agrees with plain training on the same model, data and schedule."
    if first.doubt:
        yield f"Before this is reported: {first.doubt}."


def _rule(first: Finding, script: str | None) -> str:
    """Return the rule that is broken, and where it comes from."""
    reference = "the plain module"
    if not is_alone(script):
        reference += " on every rank, with its gradients averaged by an explicit all-reduce"
    expected = " ".join(first.expected.split()).rstrip(".")
    if basis := first.rule.basis:
        return basis.format(truth=reference, expected=expected)
    why = {
        "bitwise": "both sides compute the same, and a sum of two terms is the same in either "
        "order, so they must agree bit for bit.",
        "exact": "all values are small integers times powers of two, so no order of the sums "
        "rounds anything.",
    }.get(first.comparison, "they may differ by rounding only.")
    if first.detail in (MISSING, UNEXPECTED):
        why = "whether something is there does not depend on rounding."
    elif first.type_due:
        why = "shape and dtype do not depend on rounding."
    elif first.bound == 0 and first.comparison in ("bounded", "precision"):
        why = "both sides compute it in the same way, so the bits must be equal."
    return f"the result is compared with {reference}; {why}"


def related(entry: CorpusEntry, mend: Mend | None) -> Iterator[str]:
    """Yield issues and pull requests of the same or a near bug, and what was searched for when."""
    looks = mend.public if mend is not None else ()
    if entry.issue and entry.issue not in {look.link for look in looks}:
        yield f"{issue_number(entry.issue)}, the same"
    for look in sorted(looks, key=lambda look: (not look.is_same, not look.link)):
        found = ", ".join(filter(None, (issue_number(look.link), look.says))) or "none found"
        searched = f' (searched on {look.date} for "{look.query}")' if look.query else ""
        yield markdown(found + searched)
    if looked_up := entry.notes.get(LOOKED_UP):
        yield markdown(looked_up)


def issue_number(address: str) -> str:
    """Return ``"#183702"``, as GitHub links issues of its own; ``"owner/name#1"`` of another
    repository.
    """
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/(?:issues|pull)/(\d+)/?", address)
    if found is None:
        return address
    return f"{'' if found[1] == 'pytorch/pytorch' else found[1]}#{found[2]}"


def markdown(text: str) -> str:
    """Return as Markdown the prose of docstrings, whose code has two backticks."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text).replace("``", "`")
