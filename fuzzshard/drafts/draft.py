"""Puts a draft together: words, evidence and the template, under the length that GitHub takes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import jinja2

from fuzzshard import __version__
from fuzzshard.case.program_text import program
from fuzzshard.corpus.causes import looked
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.drafts.duplicates import Duplicate
from fuzzshard.drafts.evidence import Evidence, versions_known
from fuzzshard.drafts.words import reasons, summary, title
from fuzzshard.mending.mend import own_mends
from fuzzshard.mending.source import as_diff, why_not
from fuzzshard.verdict import Finding

MOST_CHARACTERS = 65_535
"""What GitHub takes for the body of an issue."""

_DOES_LESS = re.compile(r"without (forward|backward)(;|$)")
"""Changes after which there is nothing to be wrong: they tell a reader nothing."""

_OUTPUT_CHARACTERS = 12_000
_SHORT_CHARACTERS = 3_000

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("fuzzshard", "drafts"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    # the result is Markdown in code fences, and a person reads it before anyone else does
    autoescape=False,
)


def draft(
    path: Path,
    entry: CorpusEntry,
    script: str | None,
    evidence: Evidence,
    cause: Collection[str],
    duplicates: list[Duplicate],
) -> str:
    """The text of ``report.md``; where it is too long its quotations are cut."""
    for quoted in (_OUTPUT_CHARACTERS, _SHORT_CHARACTERS):
        text = _render(path, entry, script, _shortened(evidence, quoted), cause, duplicates)
        if len(text) <= MOST_CHARACTERS:
            return text
    return text[:MOST_CHARACTERS]


def _render(
    path: Path,
    entry: CorpusEntry,
    script: str | None,
    evidence: Evidence,
    cause: Collection[str],
    duplicates: list[Duplicate],
) -> str:
    mend = own_mends().get(entry.cause)
    text = _TEMPLATES.get_template("report.md.j2").render(
        version=__version__,
        name=path.name,
        title=title(entry, cause),
        summary=summary(entry, cause),
        mend=mend,
        fix=as_diff(mend) if mend is not None and mend.edits and not why_not(mend) else "",
        cured=evidence.cured,
        setup=mend.setup.replace("``", "`") if mend is not None else "",
        looked=looked,
        culprits=[
            c for c in evidence.culprits if c.outcome == "PASS" and not _DOES_LESS.search(c.change)
        ],
        ran=evidence.repeats is not None,
        script=script,
        output=evidence.script.output,
        num_ranks=entry.case.mesh.size,
        on_cpu=entry.device == "cpu",
        reasons=list(reasons(entry, evidence)),
        where=_where(entry),
        schedule="\n".join(_marked(entry)),
        rate=_rate(entry, evidence),
        versions=list(versions_known(entry)),
        duplicates=duplicates,
        environment=evidence.environment,
    )
    return _single_blank_lines(text)


def _single_blank_lines(text: str) -> str:
    """What the template leaves blank, outside of code fences: the script stays as it ran."""
    parts = text.split("```")
    parts[::2] = [re.sub(r"\n{3,}", "\n\n", part) for part in parts[::2]]
    return "```".join(parts)


def _where(entry: CorpusEntry) -> Mapping[str, str]:
    """The first place that differs, as cells of a table."""
    first = entry.findings[0]
    lines = program(entry.case)
    op = f"{first.op}: `{lines[first.op]}`" if 0 <= first.op < len(lines) else "none in particular"
    return {
        "op": op,
        "kind": first.oracle.replace("_", " "),
        "name": f"`{first.name}`" if first.name else "",
        "rank": ", ".join(
            map(str, sorted({f.rank for f in entry.findings if _is_there(f, first)}))
        ),
        "expected": _cell(first.expected),
        "observed": _cell(first.observed),
    }


def _is_there(finding: Finding, first: Finding) -> bool:
    return (finding.oracle, finding.op, finding.name) == (first.oracle, first.op, first.name)


def _cell(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 300 else flat[:296].rstrip() + " ..."


def _marked(entry: CorpusEntry) -> list[str]:
    mark = entry.findings[0].op
    return [
        f"{index:>3}  {line}{'   <- here' * (index == mark)}"
        for index, line in enumerate(program(entry.case))
    ]


def _rate(entry: CorpusEntry, evidence: Evidence) -> str:
    parts = []
    if entry.confirmed is not None:
        confirmed = entry.confirmed
        parts.append(f"{confirmed.reproduced} of {confirmed.runs} runs of the case on fresh ranks")
    if evidence.script.runs:
        parts.append(f"{evidence.script.shown} of {evidence.script.runs} runs of the script")
    return ", ".join(parts) + "." if parts else "seen once."


def _shortened(evidence: Evidence, length: int) -> Evidence:
    script = dataclasses.replace(evidence.script, output=_tail(evidence.script.output, length))
    return dataclasses.replace(
        evidence, script=script, environment=_head(evidence.environment, 2 * length)
    )


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else "...\n" + text[-length:].partition("\n")[2]


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length].rpartition("\n")[0] + "\n..."
