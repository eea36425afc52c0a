"""Puts a draft together: words, evidence and the template, under the length that GitHub takes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

import jinja2

from fuzzshard import __version__
from fuzzshard.analysis.program_text import program
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.drafts.evidence import Evidence, versions_known
from fuzzshard.drafts.words import (
    accused,
    command,
    impact,
    issue_number,
    markdown,
    private_names,
    reasons,
    related,
    setup,
    summary,
    title,
    who,
)
from fuzzshard.mending.mend import own_mends
from fuzzshard.mending.source import as_diff, why_not
from fuzzshard.parts.oracle import cut
from fuzzshard.reproducer import body

MOST_CHARACTERS = 65_535
"""What GitHub takes for the body of an issue."""

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
    entry: CorpusEntry,
    script: str | None,
    evidence: Evidence,
    cause: Collection[str],
) -> str:
    """Return the text of ``report.md``; where it is too long its quotations are cut."""
    for quoted in (_OUTPUT_CHARACTERS, _SHORT_CHARACTERS):
        text = _render(entry, script, _shortened(evidence, quoted), cause)
        if len(text) <= MOST_CHARACTERS:
            return text
    return text[:MOST_CHARACTERS]


def _render(
    entry: CorpusEntry,
    script: str | None,
    evidence: Evidence,
    cause: Collection[str],
) -> str:
    mend = own_mends().get(entry.cause)
    diagnosis = markdown(mend.diagnosis) if mend is not None else ""
    gist, _, details = diagnosis.partition("\n\n")
    text = _TEMPLATES.get_template("report.md.j2").render(
        version=__version__,
        title=title(entry, cause, script),
        impact=impact(entry),
        who=who(entry, cause, mend),
        filed=[*map(issue_number, mend.filed)] if mend is not None else [],
        gist=gist,
        summary=summary(entry, script),
        mend=mend,
        details=details,
        fix=as_diff(mend) if mend is not None and mend.edits and not why_not(mend) else "",
        cured=evidence.cured,
        workaround=markdown(mend.workaround) if mend is not None else "",
        changes=evidence.changes,
        ran=evidence.repeats is not None,
        example=mend.example if mend is not None and evidence.has_example else "",
        example_ranks=mend.example_ranks if mend is not None and mend.example else 0,
        example_output=evidence.example.output,
        script=_shown(entry, script) if script is not None else None,
        private=private_names(script or ""),
        output=evidence.script.output,
        setup=setup(entry, script),
        command=command(script or ""),
        reasons=list(reasons(entry, script, evidence)),
        where=_where(entry),
        schedule="\n".join(_marked(entry)),
        rate=_rate(entry, evidence),
        versions=list(versions_known(entry, evidence)),
        related=list(related(entry, mend)),
        environment=evidence.environment,
    )
    return _single_blank_lines(text)


def _shown(entry: CorpusEntry, script: str) -> str:
    """The script, without the words at its top where they accuse an engine that is not wrong."""
    if accused(entry, script):
        return script
    return "\n".join([*script.splitlines()[:1], *body(script)])


def _single_blank_lines(text: str) -> str:
    """What the template leaves blank, outside of code fences: the script stays as it ran."""
    parts = text.split("```")
    parts[::2] = [re.sub(r"\n{3,}", "\n\n", part) for part in parts[::2]]
    return "```".join(parts)


def _where(entry: CorpusEntry) -> str:
    """Tell the first place that differs."""
    first = entry.findings[0]
    place = (first.oracle, first.op, first.name)
    ranks = sorted({f.rank for f in entry.findings if (f.oracle, f.op, f.name) == place})
    expected, observed = (
        cut(" ".join(text.split()), 300) for text in (first.expected, first.observed)
    )
    name = f"`{first.name}`, " if first.name else ""
    return f"{name}rank {', '.join(map(str, ranks))}: expected {expected}, observed {observed}"


def _marked(entry: CorpusEntry) -> list[str]:
    mark = entry.findings[0].op
    return [
        f"{index:>3}  {line}{'   <- here' * (index == mark)}"
        for index, line in enumerate(program(entry.case))
    ]


def _rate(entry: CorpusEntry, evidence: Evidence) -> str:
    parts = []
    if evidence.script.runs:
        parts.append(f"{evidence.script.shown} of {evidence.script.runs} runs of the script")
    if entry.confirmed is not None:
        confirmed = entry.confirmed
        parts.append(f"{confirmed.reproduced} of {confirmed.runs} runs on fresh ranks when found")
    return f"It shows in {', and in '.join(parts)}." if parts else "It was seen once."


def _shortened(evidence: Evidence, length: int) -> Evidence:
    script = dataclasses.replace(evidence.script, output=_tail(evidence.script.output, length))
    return dataclasses.replace(
        evidence, script=script, environment=_head(evidence.environment, 2 * length)
    )


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else "...\n" + text[-length:].partition("\n")[2]


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length].rpartition("\n")[0] + "\n..."
