"""``fuzzshard report``: a finding as the draft of an issue."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fuzzshard.campaign.known import saved_cause
from fuzzshard.commands.corpus_sets import complain, text_width
from fuzzshard.contracts import installed_torch
from fuzzshard.corpus.causes import by_cause, first_to_file, top_lines
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import known_versions
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import CASE_FILE, REPORT_FILE, only_case, saved_script
from fuzzshard.drafts.draft import draft
from fuzzshard.drafts.evidence import (
    Evidence,
    collect_env,
    judged,
    right_changes,
    run_example,
    run_script,
)
from fuzzshard.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE, UsageError
from fuzzshard.mending.mend import own_mends
from fuzzshard.options import AtLeastOne, Output, RankOptions
from fuzzshard.report.busy import busy
from fuzzshard.verdict import Status
from fuzzshard.world import World

MOST_RANKS = 4
"""Ranks for changes of the case: a mesh that is larger than the finding's may make it right."""


def report(
    path: Path,
    /,
    *,
    output: Output = None,
    runs: AtLeastOne = 3,
    run: Annotated[bool, Parameter(name="--run", negative="--no-run")] = True,
    top: AtLeastOne | None = None,
    ranks: Annotated[RankOptions, Parameter(name="*")] = RankOptions(),
) -> int:
    """Draft a PyTorch issue of a finding (report.md).

    The draft is for a person to review and send; nothing is ever sent.
    This command runs the scripts, the case, small changes of the case (those that
    make it pass are saved in the entry, unless -o is given), and
    torch.utils.collect_env.

    What to file first: --top ranks the causes of a corpus that this torch has and
    that no issue of torch is about. Silent wrong results come first, in setups
    that people have, above all if other projects have met them, with a small fix.

    Exit code 0: the draft is written; 3: the finding did not show here. No draft
    is written if neither the case nor its script shows it.

    For example:
      fuzzshard report corpus/findings/NAME
      fuzzshard report corpus/findings/NAME --no-run -o draft.md
      fuzzshard report corpus/findings --top 10

    Parameters
    ----------
    path
        An entry; with --top, a corpus.
    output
        The file to write the draft to. By default report.md in the entry's folder.
    runs
        How often to run the script.
    run
        --no-run runs nothing, and writes only what earlier runs have shown.
    top
        Draft nothing; print this many causes to file first, each with an entry.
    """
    if top is not None:
        stored, broken = load([path])
        print(*top_lines(first_to_file(by_cause(stored))[:top], text_width()), sep="\n")
        return complain(broken)
    file = only_case(path)
    entry = read_entry(file)
    if file.name != CASE_FILE or not entry.findings:
        raise UsageError(f"{file} is no finding of a corpus", "give an entry's folder")
    return _write(file, entry, output, runs if run else 0, ranks)


def _write(
    file: Path, entry: CorpusEntry, output: Path | None, runs: int, ranks: RankOptions
) -> int:
    script = saved_script(file)
    evidence, shows = Evidence(culprits=entry.culprits), True
    if runs:
        evidence = _gather(entry, script, runs, ranks)
        shows = bool(evidence.repeats and (script is None or evidence.script.shown))
        if not evidence.repeats and not evidence.script.shown:
            _say_absent(file, entry, evidence)
            return EXIT_INCONCLUSIVE
        if (mend := own_mends().get(entry.cause)) is not None:
            example = run_example(mend, preload=ranks.preload)
            evidence = dataclasses.replace(evidence, example=example)
        if evidence.culprits and evidence.culprits != entry.culprits:
            entry = msgspec.structs.replace(entry, culprits=evidence.culprits)
            if output is None:
                write_atomic(file, encode_entry(entry))
    if script is not None and runs:
        right = right_changes(entry, script, preload=ranks.preload)
        evidence = dataclasses.replace(evidence, changes=right)
    text = draft(entry, script, evidence, saved_cause(file, entry))
    target = output or file.with_name(REPORT_FILE)
    write_atomic(target, text.encode())
    print(f"{target}: {len(text)} characters; read it before you send it")
    if entry.lifecycle is Lifecycle.FIXED and entry.good_on:
        print(f"torch {entry.good_on[-1]} does not show it: send it for older releases only")
    if not shows:
        print("not everything that ran here showed the finding; the draft says so")
    return EXIT_CLEAN if shows else EXIT_INCONCLUSIVE


def _say_absent(file: Path, entry: CorpusEntry, evidence: Evidence) -> None:
    here = f"torch {installed_torch()}"
    shows = "passes" if evidence.shows == Status.PASS else f"shows {evidence.shows or 'nothing'}"
    known = f" ({known_versions(entry)})" if entry.bad_on or entry.good_on else ""
    print(
        f"{file.parent} {shows} with {here}: no draft written{known}; --no-run writes one of "
        "what the entry knows"
    )


def _gather(entry: CorpusEntry, script: str | None, runs: int, ranks: RankOptions) -> Evidence:
    size = ranks.world_size
    if size is None:
        size = max(entry.case.mesh.size, min(MOST_RANKS, ranks.most))
    config = ranks.config(size)
    with busy("starting ranks", 3) as line:
        with World(config) as world:
            evidence = judged(world, size, entry, line.now)
        line.advance()
        if script is not None:
            line.now(f"running the script, {runs} times")
            ran = run_script(script, entry, runs, preload=ranks.preload)
            evidence = dataclasses.replace(evidence, script=ran)
        line.advance()
        line.now("running torch.utils.collect_env")
        return dataclasses.replace(evidence, environment=collect_env())
