"""Events as lines of text, for logs and for the scrollback above the panel."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fuzzshard.contracts import untried_lines
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.corpus.store import PAGE_FILE
from fuzzshard.events import (
    CampaignFinished,
    CampaignStarted,
    Continued,
    CorpusLoaded,
    Event,
    Exchanged,
    FindingFlaky,
    FindingFound,
    FindingSaved,
    Finishing,
    InfraTrouble,
    KnownFinding,
    NodeChanged,
    SaveFailed,
    WorldStarted,
)
from fuzzshard.instruments import off_lines
from fuzzshard.mending.mend import own_mends
from fuzzshard.mending.source import unfit_lines
from fuzzshard.parts.oracle import cut as first_words
from fuzzshard.report.stages import CampaignProgress, clock, counted

WIDTH = 100
"""Columns of a line where nobody says how wide the terminal is; paths and commands stay whole."""
MAX_UNSEEN_SHOWN = 12
MAX_CAUSES_SHOWN = 5
FIND_A_KNOWN_BUG = (
    "fuzzshard run --mends off --max-findings 1 --device cpu --world-size 2 --corpus known-bugs"
)
"""Takes a minute or two on two cores."""


_MENDS = {
    "both": "three of four cases run with known bugs of torch fixed in memory, the others on "
    "torch as it is",
    "on": "cases run with known bugs of torch fixed in memory; one that fails is run on torch as "
    "it is, too",
    "off": "cases run on torch as it is; known bugs count as findings",
}


def event_lines(event: Event, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines for an event, mostly none. What torch said is cut to ``width``."""
    match event:
        case CampaignStarted():
            yield f"seed {event.seed}"
            ranks = f"{counted(event.worlds, 'world')} of {counted(event.world_size, 'rank')}"
            yield (
                f"fuzzshard {event.version}: {ranks} on {event.device}, corpus {event.corpus}, "
                f"{_limits(event)}"
            )
            yield f"engines {', '.join(event.engines)}"
            if event.steering:
                yield f"steered: {event.steering}"
            if event.continues is not None:
                yield _continued(event.continues)
            if event.note:
                yield event.note
            yield _MENDS[event.mends]
            yield from unfit_lines(event.mends_unfit)
            if event.preload:
                yield f"preloaded in every rank: {', '.join(event.preload)}"
        case WorldStarted():
            info = event.info
            versions = f"torch {info['torch']}, python {info['python']}"
            yield f"world {event.world} is up: {versions}, {info['device']}, {info['backend']}"
            if event.world == 0:
                yield from untried_lines(info["torch"])
                yield from off_lines(event.info)
        case FindingFound():
            case = f"case {event.index}" if event.index >= 0 else "a case that was cut off"
            yield cut(f"[{clock(event.elapsed)}] FOUND {event.signature} in {case}", width)
            yield cut(f"    {event.summary}", width)
            yield f"    saved as found: {event.path}"
        case FindingFlaky():
            observed = ", ".join(event.observed)
            runs = f"none of {event.runs} runs on fresh ranks showed it, but {observed}"
            yield f"[{clock(event.elapsed)}] INCONCLUSIVE {event.signature}: {runs}"
            yield f"    kept in {event.path}"
        case FindingSaved():
            yield from _saved(event)
        case CorpusLoaded():
            yield f"the corpus has findings already: {corpus_text(event)}"
        case Exchanged():
            yield f"[{clock(event.elapsed)}] {exchange_text(event)}"
            yield from (f"    {path}" for path in event.learned)
        case NodeChanged():
            what = "is lost; its worlds wait for it" if event.is_lost else "is back"
            yield f"[{clock(event.elapsed)}] the node at {event.node} {what}"
        case SaveFailed():
            yield f"[{clock(event.elapsed)}] NOT SAVED {event.signature}: {event.problem}"
            yield f"    the case: {bytes(event.case).decode()}"
        case InfraTrouble():
            yield (
                f"[{clock(event.elapsed)}] case {event.index} could not be judged: {event.message}"
            )
            yield f"    saved in {event.path}"
        case Finishing():
            doing = "; ".join(event.doing)
            yield cut(f"[{clock(event.elapsed)}] {event.reason}; finishing: {doing}", width)
        case CampaignFinished():
            yield from _summary(event)


def progress_line(progress: CampaignProgress) -> str:
    """Return where the campaign stands, in one line."""
    coverage = progress.coverage
    seen = f", features {coverage.features_seen}/{coverage.features_total}" if coverage else ""
    in_work = f", {on} in work" if (on := progress.stages.on_findings) else ""
    return (
        f"[{clock(progress.elapsed)}] {counted(progress.cases, 'case')}, "
        f"{progress.cases / max(progress.elapsed, 1e-9):.2f}/s "
        f"({counts_text(progress.counts)}){seen}, "
        f"{counted(progress.num_findings, 'finding')}{in_work}{''.join(_on_findings(progress))}"
    )


def _on_findings(progress: CampaignProgress) -> Iterator[str]:
    stages = progress.stages
    for world, text in stages.texts().items():
        if stages.of_world[world].phase.signature:
            yield f"; {text}"


def cut(text: str, width: int) -> str:
    """Return ``text`` as one line of at most ``width`` columns."""
    indent = text[: len(text) - len(text.lstrip())]
    return indent + first_words(" ".join(text.split()), width - len(indent))


def folded(text: str, width: int) -> str:
    """Return ``text`` on lines of at most ``width`` columns, broken between words.

    A line with a path or a command stays one line, as people copy it.
    """
    if len(text) <= width or "/" in text or " --" in text:
        return text
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


def exchange_text(event: Exchanged) -> str:
    """Return what other nodes have said."""
    nodes = f"{counted(event.nodes, 'campaign')} of this exchange"
    if event.problem:
        return f"exchange: {event.problem}; this campaign goes on, and tries again"
    learned = len(event.learned)
    found = f"; others found {learned}, counted from now on:" if learned else ""
    return f"{nodes} run{'s' * (event.nodes == 1)}{found}"


def corpus_text(loaded: CorpusLoaded) -> str:
    """Return how many findings a corpus has, and what becomes of cases that show them again."""
    parts = []
    if loaded.known:
        parts.append(
            f"{loaded.known} that are counted when a case shows them, and not saved again"
        )
    if loaded.explained:
        parts.append(f"{loaded.explained} of known bugs of torch")
    if loaded.in_work:
        parts.append(
            f"{len(loaded.in_work)} that another campaign did not get done, which fuzzshard "
            "shrink goes on with"
        )
    return ", ".join(parts)


def counts_text(counts: Mapping[str, int]) -> str:
    """Return ``"PASS 120, DIVERGENCE 2"``, most frequent first."""
    return (
        ", ".join(f"{k} {v}" for k, v in sorted(counts.items(), key=lambda item: -item[1]))
        or "none yet"
    )


def _limits(event: CampaignStarted) -> str:
    limits = []
    if event.max_cases is not None:
        limits.append(f"at most {counted(event.max_cases, 'case')}")
    if event.max_time is not None:
        limits.append(f"at most {event.max_time:g} s")
    if event.max_findings is not None:
        limits.append(f"at most {counted(event.max_findings, 'finding')}")
    if event.stop_after_no_new is not None:
        limits.append(f"until nothing new comes for {event.stop_after_no_new:g} s")
    return ", ".join(limits) or "until Ctrl-C"


def _continued(before: Continued) -> str:
    """``"goes on after 120 cases in 0:35, 1 finding (killed)"``."""
    sessions = f" in {before.sessions} sessions" if before.sessions > 1 else ""
    findings = counted(before.findings, "finding")
    left = f"; {before.unfinished} unfinished, which come first" if before.unfinished else ""
    so_far = f"{counted(before.cases, 'case')} and {clock(before.elapsed)}{sessions}"
    return f"goes on after {so_far}, {findings} ({before.ended}){left}; --fresh begins anew"


def _saved(event: FindingSaved) -> Iterator[str]:
    what = "KNOWN" if event.duplicate else "SAVED"
    rate = Confirmation(runs=event.runs, reproduced=event.reproduced, others=event.others)
    yield f"[{clock(event.elapsed)}] {what} {event.signature}"
    leaves = f"{event.leaves_before} -> {counted(event.leaves_after, 'leaf module')}"
    verified = {True: "fails as it should", False: "does NOT fail when run alone", None: "not run"}
    script = f"script {verified[event.script_fails]}"
    yield f"    {leaves}, confirmed: {rate.text()}, {script}"
    yield f"    replay: {event.replay_command}"
    yield f"    script: {event.script}"
    if event.note:
        yield f"    note: {event.note}"


def _summary(event: CampaignFinished) -> Iterator[str]:
    """Findings and what to do with them come first, then what was covered. Why it stopped comes
    last, where whoever looks at a log looks first.
    """
    yield ""
    for finding in event.findings:
        yield _finding(finding)
        yield f"    {finding.path}"
    if event.unresolved:
        first = event.unresolved[0]
        yield f"not done before the end: {first}{_and_others(event.unresolved)}"
        yield f"    the same command goes on with it, or: fuzzshard shrink {first}"
    if event.suspects:
        others = _and_others(event.suspects)
        yield f"failed, and was not explained before the end: {event.suspects[0]}{others}"
        yield "    the same command says whether a known bug is why"
    if event.cases and not (event.findings or event.unresolved):
        yield f"no findings in {counted(event.cases, 'case')}"
    elif not (event.cases or event.unresolved or event.suspects):
        yield f"nothing was tested: no case came to its end in {clock(event.elapsed)}"
    yield from _next_steps(event)
    yield from _known_bugs(event)
    yield (
        f"{counted(event.cases, 'case')} in {clock(event.elapsed)}, "
        f"{event.cases_per_second:.2f} per second ({counts_text(event.counts)})"
    )
    yield (
        f"coverage: {event.features_seen} of {event.features_total} features"
        f"{_unseen(event.features_unseen)}"
    )
    if event.corpus:
        yield f"page: {Path(event.corpus) / PAGE_FILE}"
    again = "" if event.complete else "; the same command goes on with it"
    yield f"{event.reason}; exit code {event.exit_code}, seed {event.seed}{again}"


def _next_steps(event: CampaignFinished) -> Iterator[str]:
    """Yield what to do with the first finding of the campaign."""
    new = [finding.path for finding in event.findings if finding.new] or list(event.unresolved)
    for path in new[:1]:
        yield f"next: fuzzshard show {path}"
        yield f"      fuzzshard report {path}"


def _known_bugs(event: CampaignFinished) -> Iterator[str]:
    """The known bugs of torch that cases ran into, the most frequent ones with their titles."""
    if event.causes:
        bugs = f"{counted(len(event.causes), 'known bug')} of torch {event.torch}"
        yield f"{counted(event.explained, 'case')} ran into {bugs}, counted and not shrunk;"
        yield "fuzzshard show NAME tells of one:"
    for cause, cases in list(event.causes.items())[:MAX_CAUSES_SHOWN]:
        mend = own_mends().get(cause)
        yield f"{cases:6} x {cause}{f': {mend.title}' if mend is not None else ''}"
    if (more := len(event.causes) - MAX_CAUSES_SHOWN) > 0:
        yield f"         and {more} more"
    if not (event.mends == "off" or event.findings or event.unresolved):
        yield f"to see a known bug found and shrunk: {FIND_A_KNOWN_BUG}"


def _unseen(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    if len(names) > MAX_UNSEEN_SHOWN:
        return f"; {len(names)} not seen yet"
    return f"; not seen: {', '.join(names)}"


def _and_others(paths: Sequence[str]) -> str:
    more = len(paths) - 1
    return f" and {counted(more, 'other')}" if more else ""


def _finding(finding: KnownFinding) -> str:
    """``"known internal finding divergence/ddp/hooks (flaky, 3 of 10 runs), once"``."""
    kind = f"{'' if finding.new else 'known '}{'internal ' if finding.internal else ''}finding"
    words = f"{kind} {finding.signature}"
    words += f" ({finding.rate})" if finding.rate else ""
    times = {0: "not seen", 1: "once"}.get(finding.hits, f"{finding.hits} times")
    return f"{words}, {times}"
