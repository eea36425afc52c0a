"""``fuzzshard report``: a finding as the draft of an issue."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fuzzshard.commands.options import Device, Preload, world_config
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import CASE_FILE, REPORT_FILE, only_case, saved_script
from fuzzshard.drafts.evidence import Evidence
from fuzzshard.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE, UsageError

MOST_RANKS = 4
"""Ranks for changes of the case: a mesh that is larger than the finding's may make it right."""


def report(
    path: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    runs: int = 3,
    run: Annotated[bool, Parameter(name="--run", negative="--no-run")] = True,
    device: Device = "auto",
    preload: Preload = (),
) -> int:
    """Write report.md: a finding as an issue for PyTorch's tracker.

    It is a draft for a person to review and to send; nothing is ever sent.
    Runs the script, the case, changes of the case that may make it right (these
    are kept in the entry), and torch.utils.collect_env. Exit code 0: the draft
    is written; 3: it is, but the finding did not show here.

    For example:
      fuzzshard report corpus/findings/NAME
      fuzzshard report corpus/findings/NAME --no-run -o draft.md

    Parameters
    ----------
    path
        An entry.
    output
        Where to write the draft; by default report.md in the entry's folder.
    runs
        How often to run the script.
    run
        --no-run runs nothing and says only what the entry knows.
    device
        auto is CUDA with NCCL where there is any, else the CPU with gloo.
    preload
        A Python file that every rank runs first; repeat it for several.
    """
    from fuzzshard.campaign.saved import saved_cause
    from fuzzshard.drafts.draft import draft
    from fuzzshard.drafts.duplicates import duplicates

    file = only_case(path)
    entry = read_entry(file)
    if file.name != CASE_FILE or not entry.findings:
        raise UsageError(f"{file} is no finding of a corpus", "give an entry's folder")
    if runs < 1:
        raise UsageError(f"{runs} runs show nothing", "use --runs 1 or more, or --no-run")
    script = saved_script(file)
    evidence = Evidence(culprits=entry.culprits)
    if run:
        evidence = _gather(entry, script, runs, device, preload)
        if evidence.culprits and evidence.culprits != entry.culprits:
            entry = msgspec.structs.replace(entry, culprits=evidence.culprits)
            write_atomic(file, encode_entry(entry))
    features = saved_cause(file, entry)
    text = draft(file.parent, entry, script, evidence, features, duplicates(file, entry, features))
    target = output or file.with_name(REPORT_FILE)
    write_atomic(target, text.encode())
    print(f"{target}: {len(text)} characters; read it before you send it")
    if run and not (evidence.repeats and (script is None or evidence.script.shown)):
        print("the finding did not show here: the draft says so")
        return EXIT_INCONCLUSIVE
    return EXIT_CLEAN


def _gather(
    entry: CorpusEntry, script: str | None, runs: int, device: Device, preload: tuple[Path, ...]
) -> Evidence:
    from fuzzshard.drafts.evidence import collect_env, judged, run_script
    from fuzzshard.report.busy import busy
    from fuzzshard.world import World, resolve_device

    kind, num_devices = resolve_device(device)
    size = max(entry.case.mesh.size, MOST_RANKS)
    size = size if kind == "cpu" else min(size, num_devices)
    config = world_config(kind, num_devices, preload, asked=size, default=size)
    with busy("running the case, and changes of it that may make it right", 3) as line:
        with World(config) as world:
            evidence = judged(world, size, entry)
        line.advance()
        if script is not None:
            line.now(f"running the script, {runs} times")
            ran = run_script(script, entry, runs, preload=preload)
            evidence = dataclasses.replace(evidence, script=ran)
        line.advance()
        line.now("running torch.utils.collect_env")
        return dataclasses.replace(evidence, environment=collect_env())
