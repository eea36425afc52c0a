"""``fuzzshard report``: a finding as the draft of an issue, and which to file first."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import textwrap
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter, validators

from fuzzshard.commands.corpus_sets import complain, print_json
from fuzzshard.commands.options import (
    DEFAULT_CORPUS,
    Device,
    DeviceHere,
    Json,
    OutputFile,
    Preload,
    world_config,
)
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import known_versions
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import CASE_FILE, REPORT_FILE, only_case, saved_script
from fuzzshard.drafts.evidence import Evidence
from fuzzshard.drafts.variants import Variant
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE, UsageError
from fuzzshard.mending.mend import own_mends
from fuzzshard.verdict import Status

MOST_RANKS = 4
"""Ranks for changes of the case: a mesh that is larger than the finding's may make it right."""


def report(
    path: Path | None = None,
    /,
    *,
    output: Annotated[OutputFile | None, Parameter(name=("--output", "-o"))] = None,
    runs: int = 3,
    run: Annotated[bool, Parameter(name="--run", negative="--no-run")] = True,
    top: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    device: DeviceHere = "auto",
    preload: Preload = (),
    as_json: Json = False,
) -> int:
    """Draft a PyTorch issue of a finding (report.md), or rank what to file first.

    The draft is for a person to review and send; nothing is ever sent. It is
    about one bug: other entries with the same cause are in it with their scripts.
    This command runs the scripts, the case, small changes of the case (those that
    make it pass are saved in the entry, unless -o is given), and
    torch.utils.collect_env.

    With --top, print which bugs of a corpus to file first, and why: silent wrong
    results, then hangs, crashes, leaks. Bugs that are public already, or fixed in
    the newest torch that was tried, are left out.

    Exit code 0: the draft is written, or a case that should pass passes; 1: a
    case that should pass shows a finding; 3: the finding did not show here. No
    draft is written if neither the case nor its script shows it.

    For example:
      fuzzshard report corpus/findings/NAME
      fuzzshard report corpus/findings/NAME --no-run -o draft.md
      fuzzshard report --top 5 corpus/findings

    Parameters
    ----------
    path
        An entry. With --top a corpus, by default ./corpus.
    output
        The file to write the draft to. By default report.md in the entry's folder.
    runs
        How often to run the script.
    run
        --no-run runs nothing, and writes only what the entry knows.
    top
        How many bugs of a corpus to print, the first one to file first.
    as_json
        With --top: print one JSON object for each bug, then for those left out.
    """
    if top is not None:
        return _top(path or DEFAULT_CORPUS, top, as_json=as_json)
    if as_json or path is None:
        raise UsageError(
            "--json is for --top" if as_json else "report needs an entry",
            "give --top N, or the folder of an entry",
        )
    file = only_case(path)
    entry = read_entry(file)
    if runs < 1:
        raise UsageError(f"{runs} runs show nothing", "use --runs 1 or more, or --no-run")
    if not entry.findings:
        return _passing(path, entry, device, preload, run=run)
    if file.name != CASE_FILE:
        raise UsageError(f"{file} is no finding of a corpus", "give an entry's folder")
    return _write(file, entry, output, runs if run else 0, device, preload)


def _write(
    file: Path,
    entry: CorpusEntry,
    output: Path | None,
    runs: int,
    device: Device,
    preload: tuple[Path, ...],
) -> int:
    from fuzzshard.campaign.saved import saved_cause
    from fuzzshard.drafts.draft import draft
    from fuzzshard.drafts.evidence import right_changes, run_example
    from fuzzshard.drafts.variants import duplicates, variants

    script, told = saved_script(file), variants(file, entry)
    evidence, shows = Evidence(culprits=entry.culprits), True
    if runs:
        evidence = _gather(entry, script, runs, device, preload)
        shows = bool(evidence.repeats and (script is None or evidence.script.shown))
        if not evidence.repeats and not evidence.script.shown:
            _say_absent(file, entry, evidence)
            return EXIT_INCONCLUSIVE
        if (mend := own_mends().get(entry.cause)) is not None:
            example = run_example(mend, preload=preload)
            evidence = dataclasses.replace(evidence, example=example)
        if evidence.culprits and evidence.culprits != entry.culprits:
            entry = msgspec.structs.replace(entry, culprits=evidence.culprits)
            if output is None:
                write_atomic(file, encode_entry(entry))
        told = [variant for variant in told if _shows(variant, preload)]
    if script is not None:
        right = right_changes(entry, script, run=runs > 0, preload=preload)
        evidence = dataclasses.replace(evidence, changes=right)
    features = saved_cause(file, entry)
    text = draft(entry, script, evidence, features, told)
    target = output or file.with_name(REPORT_FILE)
    write_atomic(target, text.encode())
    print(f"{target}: {len(text)} characters; read it before you send it")
    if told:
        print(f"it also has the scripts of {', '.join(variant.name for variant in told)}")
    for other in duplicates(file, entry, features):
        print(f"may be the same: {other.name} ({other.why})")
    if entry.lifecycle is Lifecycle.FIXED and entry.good_on:
        print(f"torch {entry.good_on[-1]} does not show it: send it for older releases only")
    if not shows:
        print("not everything that ran here showed the finding; the draft says so")
    return EXIT_CLEAN if shows else EXIT_INCONCLUSIVE


def _say_absent(file: Path, entry: CorpusEntry, evidence: Evidence) -> None:
    here = f"torch {importlib.metadata.version('torch')}"
    shows = "passes" if evidence.shows == Status.PASS else f"shows {evidence.shows or 'nothing'}"
    known = f" ({known_versions(entry)})" if entry.bad_on or entry.good_on else ""
    print(
        f"{file.parent} {shows} with {here}: no draft written{known}; --no-run writes one of "
        "what the entry knows"
    )


def _shows(variant: Variant, preload: tuple[Path, ...]) -> bool:
    from fuzzshard.drafts.evidence import run_script

    return bool(run_script(variant.script, variant.entry, 1, preload=preload).shown)


def _passing(
    path: Path, entry: CorpusEntry, device: Device, preload: tuple[Path, ...], *, run: bool
) -> int:
    """A case that is expected to pass: whether it does, in one line."""
    if not run:
        print(f"{path} records no finding: there is nothing to report")
        return EXIT_CLEAN
    from fuzzshard.world import World, resolve_device

    kind, num_devices = resolve_device(device)
    size = entry.case.mesh.size
    with World(world_config(kind, num_devices, preload, size=size)) as world:
        verdict = world.run(entry.case)
    if not verdict.status.is_finding:
        print(f"{path}: {verdict.status} {verdict.message}".rstrip() + "; nothing to report")
        judged = verdict.status in (Status.PASS, Status.REJECTED)
        return EXIT_CLEAN if judged else EXIT_INCONCLUSIVE
    print(
        f"{path} shows {verdict.signature}, and records no finding: fuzzshard shrink makes an "
        "entry of it, which has a draft"
    )
    return EXIT_FINDING


def _gather(
    entry: CorpusEntry, script: str | None, runs: int, device: Device, preload: tuple[Path, ...]
) -> Evidence:
    from fuzzshard.drafts.evidence import collect_env, judged, run_script
    from fuzzshard.report.busy import busy
    from fuzzshard.world import World, resolve_device

    kind, num_devices = resolve_device(device)
    size = max(entry.case.mesh.size, MOST_RANKS)
    size = size if kind == "cpu" else min(size, num_devices)
    config = world_config(kind, num_devices, preload, size=size)
    with busy("starting ranks", 3) as line:
        with World(config) as world:
            evidence = judged(world, size, entry, line.now)
        line.advance()
        if script is not None:
            line.now(f"running the script, {runs} times")
            ran = run_script(script, entry, runs, preload=preload)
            evidence = dataclasses.replace(evidence, script=ran)
        line.advance()
        line.now("running torch.utils.collect_env")
        return dataclasses.replace(evidence, environment=collect_env())


def _top(corpus: Path, most: int, *, as_json: bool) -> int:
    from fuzzshard.drafts.ranking import ranked

    stored, broken = load([corpus])
    roots = ranked(stored)
    first = [root for root in roots if not root.left_out][:most]
    left_out = [root for root in roots if root.left_out]
    if as_json:
        print_json((*first, *left_out))
        return complain(broken)
    if not first:
        print("nothing to file")
    for number, root in enumerate(first, 1):
        print(textwrap.fill(f"{number}. {root.title}", 99, subsequent_indent="   "))
        for why in root.why:
            print(textwrap.fill(why, 99, initial_indent="   - ", subsequent_indent="     "))
        more = f"  ({root.entries} entries)" if root.entries > 1 else ""
        print(f"   fuzzshard report {root.entry}{more}\n")
    reasons = [root.left_out.partition(":")[0] for root in left_out]
    counts = ", ".join(f"{reasons.count(why)} {why}" for why in dict.fromkeys(reasons))
    print(
        f"{len(first)} of {len(roots) - len(left_out)} bugs to file"
        + (f"; left out: {counts} (--json lists them)" if counts else "")
    )
    return complain(broken)
