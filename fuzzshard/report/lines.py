"""Events as lines of text, for logs and for the scrollback above the panel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuzzshard.corpus.entry import Confirmation
from fuzzshard.events import (
    CampaignFinished,
    CampaignStarted,
    Continued,
    CorpusLoaded,
    Event,
    FindingFlaky,
    FindingFound,
    FindingSaved,
    InfraTrouble,
    KnownFinding,
    SaveFailed,
    WorldStarted,
)
from fuzzshard.instruments import OFF, off_lines
from fuzzshard.mending.source import unfit_lines
from fuzzshard.report.progress import Progress

MAX_UNSEEN_SHOWN = 12


_MENDS = {
    "both": "three cases of four run on torch with known bugs mended, the others on torch as it "
    "is",
    "on": "cases run on torch with known bugs mended; what fails there is run on torch as it is",
    "off": "cases run on torch as it is, and no bug is known",
}


def event_lines(event: Event) -> Iterator[str]:
    """The lines that an event deserves; most deserve none."""
    match event:
        case CampaignStarted():
            yield f"seed {event.seed}"
            yield (
                f"fuzzshard {event.version}: {event.worlds} x {event.world_size} ranks on "
                f"{event.device}, "
                f"engines {', '.join(event.engines)}, corpus {event.corpus}, {_limits(event)}"
            )
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
            info = ", ".join(f"{key} {value}" for key, value in event.info.items() if key != OFF)
            yield f"world {event.world} is up: {info}"
            if event.world == 0:
                yield from off_lines(event.info)
        case FindingFound():
            case = f"case {event.index}" if event.index >= 0 else "a case that was cut off"
            yield f"[{clock(event.elapsed)}] FOUND {event.signature} in {case}: {event.summary}"
            yield f"    saved as found: {event.path}"
        case FindingFlaky():
            observed = ", ".join(event.observed)
            runs = f"none of {event.runs} runs on fresh ranks showed it, but {observed}"
            yield f"[{clock(event.elapsed)}] INCONCLUSIVE {event.signature}: {runs}"
            yield f"    kept in {event.path}"
        case FindingSaved():
            yield from _saved(event)
        case CorpusLoaded():
            yield f"{event.known} findings are known from the corpus"
        case SaveFailed():
            yield f"[{clock(event.elapsed)}] NOT SAVED {event.signature}: {event.problem}"
            yield f"    the case: {bytes(event.case).decode()}"
        case InfraTrouble():
            yield (
                f"[{clock(event.elapsed)}] case {event.index} could not be judged: {event.message}"
            )
        case CampaignFinished():
            yield from _summary(event)


def progress_line(progress: Progress) -> str:
    """Where the campaign stands, in one line."""
    coverage = progress.coverage
    seen = f", features {coverage.features_seen}/{coverage.features_total}" if coverage else ""
    return (
        f"[{clock(progress.elapsed)}] {progress.cases} cases, "
        f"{progress.cases / max(progress.elapsed, 1e-9):.2f}/s "
        f"({counts_text(progress.counts)}){seen}, "
        f"{progress.num_findings} findings"
    )


def counts_text(counts: Mapping[str, int]) -> str:
    """``"PASS 120, DIVERGENCE 2"``, most frequent first."""
    return (
        ", ".join(f"{k} {v}" for k, v in sorted(counts.items(), key=lambda item: -item[1]))
        or "none yet"
    )


def clock(seconds: float) -> str:
    """``"1:02:03"``, or ``"2:03"`` below an hour."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _limits(event: CampaignStarted) -> str:
    limits = []
    if event.max_cases is not None:
        limits.append(f"at most {event.max_cases} cases")
    if event.max_time is not None:
        limits.append(f"at most {event.max_time:g} s")
    if event.max_findings is not None:
        limits.append(f"at most {event.max_findings} findings")
    if event.stop_after_no_new is not None:
        limits.append(f"until nothing new comes for {event.stop_after_no_new:g} s")
    return ", ".join(limits) or "until Ctrl-C"


def _continued(before: Continued) -> str:
    """``"goes on after 120 cases in 0:35, 1 finding (killed)"``."""
    sessions = f" in {before.sessions} sessions" if before.sessions > 1 else ""
    findings = f"{before.findings} finding" + ("" if before.findings == 1 else "s")
    left = f"; {before.unfinished} unfinished, which come first" if before.unfinished else ""
    return (
        f"goes on after {before.cases} cases and {clock(before.elapsed)}{sessions}, {findings} "
        f"({before.ended}){left}; --fresh begins anew"
    )


def _saved(event: FindingSaved) -> Iterator[str]:
    what = "KNOWN" if event.duplicate else "SAVED"
    rate = Confirmation(runs=event.runs, reproduced=event.reproduced, others=event.others)
    yield (
        f"[{clock(event.elapsed)}] {what} {event.signature}: {event.leaves_before} -> "
        f"{event.leaves_after} "
        f"leaf modules, confirmed: {rate.text()}"
    )
    yield f"    replay: {event.replay_command}"
    verified = {True: "fails as it should", False: "does NOT fail when run alone", None: "not run"}
    yield f"    script: {event.script} ({verified[event.script_fails]})"
    if event.note:
        yield f"    note: {event.note}"


def _summary(event: CampaignFinished) -> Iterator[str]:
    """Why it stopped comes last, where whoever looks at a log looks first."""
    yield ""
    yield (
        f"{event.cases} cases in {clock(event.elapsed)}, {event.cases_per_second:.2f} per second "
        f"({counts_text(event.counts)}); {event.overhead * 1000:.1f} ms between two cases"
    )
    yield (
        f"coverage: {event.features_seen} of {event.features_total} features, {event.pairs_seen} "
        "pairs"
        f"{_unseen(event.features_unseen)}"
    )
    if event.points_reached:
        yield f"          {event.points_reached} lines and branches of torch"
    for message, count in event.refusals:
        yield f"{count:6} x {message}"
    for cause, cases in event.causes.items():
        yield f"known cause {cause}, {_times(cases)}"
    for finding in event.findings:
        yield f"{_finding(finding)}: {finding.path}"
    for path in event.unresolved:
        yield f"not shrunk before the end: {path}"
        yield f"    the next run in this corpus goes on with it, or: fuzzshard shrink {path}"
    if not event.findings and not event.unresolved:
        yield "no findings"
    again = "" if event.complete else "; the same command goes on with it"
    yield f"{event.reason}; exit code {event.exit_code}, seed {event.seed}{again}"


def _unseen(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - MAX_UNSEEN_SHOWN} more" if len(names) > MAX_UNSEEN_SHOWN else ""
    return f"; not seen: {', '.join(names[:MAX_UNSEEN_SHOWN])}{more}"


def _finding(finding: KnownFinding) -> str:
    """``"known internal finding divergence/ddp/hooks (flaky, 3 of 10 runs), once"``."""
    kind = f"{'' if finding.new else 'known '}{'internal ' if finding.internal else ''}finding"
    words = f"{kind} {finding.signature}"
    words += f" ({finding.rate})" if finding.rate else ""
    return f"{words}, {_times(finding.hits)}"


def _times(count: int) -> str:
    return {0: "not seen", 1: "once"}.get(count, f"{count} times")
