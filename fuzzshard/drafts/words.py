"""The sentences of a draft: its title, what goes wrong and for whom, and why one side must be
wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fuzzshard.case.feature_names import FEATURES
from fuzzshard.corpus.entry import CONTRACT, CorpusEntry
from fuzzshard.drafts.evidence import Evidence
from fuzzshard.mending.mend import own_mends
from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.oracle import MISSING, UNEXPECTED, Severity, cut
from fuzzshard.verdict import Finding, Status

_TELLING = (
    *(
        "op:",
        "schedule:no_",
        "schedule:partial_sync",
        "offload:",
        "prefetch:",
        "precision:",
        "compile:",
    ),
    *("checkpoint:", "reuse:", "tensor:", "fsdp1:", "reshard:int", "reshard:false", "shard:"),
    *(
        "wrap:list_group",
        "wrap:root_not_wrapped",
        "option:",
        "mesh:hsdp",
        "mesh:axis_of_one",
        "freeze:",
    ),
    *("edge:unused", "edge:method", "edge:iadd", "schedule:", "optimizer:exclude", "dim:uneven"),
    *("returns:", "input:"),
)
"""Beginnings of the features that a title may name, the most telling first."""

_TITLE_LENGTH = 120


def engine_name(engine: str) -> str:
    """An engine by the name that its users know."""
    return ENGINES[engine].title if engine in ENGINES else engine


def _tag(component: str) -> str:
    """What a title begins with, of an engine or another component of torch."""
    return ENGINES[component].tag if component in ENGINES else component


def conditions(entry: CorpusEntry, cause: Collection[str]) -> list[str]:
    """What it takes, in words; the most telling first."""
    ordered = [
        name
        for prefix in _TELLING
        for name in FEATURES
        if name in cause and name.startswith(prefix)
    ]
    told = [pair for group in reversed(entry.case.wrap) for pair in group.told()]
    words = FEATURES | {k: v for o, value in told for k, v in o.means(value).items()}
    return list(dict.fromkeys(words[name] for name in ordered))


def title(entry: CorpusEntry, cause: Collection[str]) -> str:
    """What goes wrong, and under which condition; what is known of the cause says it better."""
    first = entry.findings[0]
    if (mend := own_mends().get(entry.cause)) is not None:
        return cut(f"[{_tag(mend.component)}] {mend.title}", _TITLE_LENGTH)
    text = cut(f"[{_tag(first.engine)}] {_headline(entry, first)}", _TITLE_LENGTH)
    told = ""
    for each in conditions(entry, cause):
        longer = f"{told}, {each}" if told else each
        if len(f"{text} ({longer})") > _TITLE_LENGTH:
            break
        told = longer
    return f"{text} ({told})" if told else text


def _headline(entry: CorpusEntry, first: Finding) -> str:
    return first.rule.headline(first, ends="die" if entry.status is Status.CRASH else "hang")


def summary(entry: CorpusEntry, cause: Collection[str]) -> str:
    """One paragraph: what goes wrong, and for whom."""
    first = entry.findings[0]
    observed, expected = (
        " ".join(text.split()).rstrip(".") for text in (first.observed, first.expected)
    )
    who = f"Training with {engine_name(first.engine)} on {_ranks(entry)}"
    sentence = first.rule.sentence.format(who=who, observed=observed, brief=cut(observed, 400))
    what = sentence or f"{who}: the {_headline(entry, first)}{_where(entry, first)}."
    presence = first.detail in (MISSING, UNEXPECTED)
    if first.error is None and not presence and not sentence:
        what += f" Expected: `{cut(expected, 300)}`; observed: `{cut(observed, 300)}`."
    what += first.rule.consequence(first)
    is_said = entry.status is not Status.DIVERGENCE or first.severity is Severity.WARNING
    silent = "" if is_said else " Nothing is raised, so training goes on with it."
    told = [] if entry.cause in own_mends() else conditions(entry, cause)
    together = (
        f" It takes {'these together' if told[1:] else 'this'}: {'; '.join(told)}." if told else ""
    )
    return what + silent + together


def _where(entry: CorpusEntry, first: Finding) -> str:
    """The tensor, and the kind of statement after which it is looked at: the script has its own
    lines.
    """
    schedule = entry.case.schedule
    after = f" after {schedule[first.op].noun()}" if 0 <= first.op < len(schedule) else ""
    return f" (`{first.name}`{after})" if first.name else after


def _ranks(entry: CorpusEntry) -> str:
    size = entry.case.mesh.size
    axes = f" (mesh {entry.mesh})" if " x " in entry.mesh else ""
    return f"{size} rank{'s' * (size > 1)}{axes}"


def reasons(entry: CorpusEntry, evidence: Evidence) -> Iterator[str]:
    """Which side is wrong, and why we know; only what was run or what a document says."""
    first = entry.findings[0]
    engine = engine_name(first.engine)
    yield f"{engine} is wrong: {_rule(entry, first)}"
    mend = own_mends().get(entry.cause)
    if contract := mend.contract.text() if mend is not None else entry.notes.get(CONTRACT):
        yield f"Documented: {contract.replace('``', '`')}"
    if first.error is not None and first.bound:
        ratio = first.error / first.bound
        yield (
            f"The difference is {first.error:.3g}. Rounding explains {first.bound:.3g} there: "
            f"the difference is {ratio:.1e} times that."
        )
    if evidence.exactly is not None and evidence.exactly.error is not None:
        bound = (
            f", where rounding explains {evidence.exactly.bound:.1e}"
            if evidence.exactly.bound
            else ""
        )
        yield (
            f"In float64 the difference is still {evidence.exactly.error:.3g}{bound}: it is no "
            "rounding."
        )
    if evidence.peer:
        peer = engine_name(evidence.peer)
        yield f"Vote: {peer} on the same model, data and schedule agrees with the reference."


def _rule(entry: CorpusEntry, first: Finding) -> str:
    """The rule that is broken, and where it comes from."""
    reference = (
        "the plain module on every rank, with its gradients averaged by an explicit all-reduce"
    )
    expected = " ".join(first.expected.split()).rstrip(".")
    if basis := first.rule.basis:
        return basis.format(truth=reference, expected=expected)
    if first.rung == "relation":
        return (
            f"it is compared with itself, with `{entry.case.relation}` otherwise, which must "
            "not matter."
        )
    why = {
        "bitwise": "both sides add the same two terms, so they must agree bit for bit.",
        "exact": "all values are small integers times powers of two, so nothing is rounded in any "
        "order.",
    }.get(first.rung, "they may differ by rounding only.")
    if first.detail in (MISSING, UNEXPECTED):
        why = "whether something is there does not depend on rounding."
    elif first.bound == 0 and first.rung in ("bounded", "precision"):
        why = (
            "what is compared here is computed the same way on both sides, so the bits must be "
            "equal."
        )
    return f"it is compared with {reference}; {why}"
