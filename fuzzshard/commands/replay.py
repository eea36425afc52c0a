"""``fuzzshard replay``: the corpus as a regression test."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fuzzshard import reproducer
from fuzzshard.campaign.explain import known_causes
from fuzzshard.campaign.judge import Stopped
from fuzzshard.checking.entry import replay_subjects
from fuzzshard.commands.worlds import CommandWorlds
from fuzzshard.corpus.outcome import Outcome, exit_code
from fuzzshard.corpus.replay import Explain, ReplayResult
from fuzzshard.corpus.replay import replay as replay_files
from fuzzshard.corpus.replay import update as update_entry
from fuzzshard.corpus.store import entry_files, subject_files
from fuzzshard.errors import EXIT_INTERRUPTED, UsageError
from fuzzshard.mending.mend import mends_for
from fuzzshard.options import DEFAULT_CORPUS, Duration, ExtraMends, Flag, Json, RankOptions, Worlds
from fuzzshard.report.busy import busy
from fuzzshard.report.stages import counted


def replay(
    *paths: Path,
    ranks: Annotated[RankOptions, Parameter(name="*")] = RankOptions(),
    worlds: Worlds = "auto",
    deadline: Duration = None,
    known: Flag = False,
    extra_mends: ExtraMends = (),
    as_json: Json = False,
    update: Flag = False,
    allow_user_code: Flag = False,
) -> int:
    """Run saved cases again and print one line for each.

    SAME          the recorded finding is still there
    WONTFIX       the same, and the entry says that it is meant to stay
    CHANGED       another finding is there, or a case that must pass fails
    FIXED         the recorded finding is gone
    KNOWN         with --known: known bugs of torch fail a case that must pass
    PASS          the case passes, and no finding was expected here
    INCONCLUSIVE  a flaky finding was absent, or your own model was not judged
    SKIPPED       it needs more ranks, or CUDA, or another torch
    INVALID       the file holds no case that can be run
    INFRA         the ranks failed; says nothing about torch

    Findings of fuzzshard check --fuzz run one after another.

    For example:
      fuzzshard replay
      fuzzshard replay corpus/findings/NAME
      fuzzshard replay corpus --device cpu --json
      fuzzshard replay corpus/regressions --known
      fuzzshard replay --update

    Parameters
    ----------
    paths
        Entries, case files, or folders to search for them; by default ./corpus.
    deadline
        How long a case may take before it counts as a hang: 30s, 2m. By default learned from
        earlier cases, and 5m for a case that must pass.
    known
        If a case that must pass fails, find out whether known bugs of torch cause it (see
        explain).
    as_json
        Print one JSON object for each case.
    update
        Write the result into each entry: open or fixed, and on which torch. CHANGED replaces the
        recorded finding if no other release was tried; else a note says what this one shows. Cases
        that record none stay as they are.
    allow_user_code
        Run findings of fuzzshard check --fuzz, too: they import and run the functions that they
        name. Entries that you were given may name any code.
    """
    if update and ranks.preload:
        raise UsageError(
            "--update records what torch does, and --preload changes that",
            "use one without the other",
        )
    if extra_mends and not known:
        raise UsageError("--extra-mends does nothing by itself", "add --known")
    files, subjects = _asked(paths or (DEFAULT_CORPUS,), allow_user_code)
    here = CommandWorlds(ranks, worlds)
    mends = mends_for(extra=extra_mends) if known else ()
    explain = functools.partial(known_causes, mends)
    results = _results(files, subjects, here, deadline, explain)
    replayed: list[ReplayResult] = []
    interrupted = False
    try:
        with (
            busy("replaying", len(files) + len(subjects)) as line,
            contextlib.closing(results),
        ):
            for result in line.each(results):
                replayed.append(result)
                updated = update_entry(result, ranks.kind, reproducer.scripts) if update else ""
                print((_as_json if as_json else _as_line)(result, updated), flush=True)
    except (Stopped, KeyboardInterrupt):
        interrupted = True
    outcomes = [result.outcome for result in replayed]
    if not as_json:
        print(_summary(outcomes, len(files) + len(subjects), interrupted))
    return EXIT_INTERRUPTED if interrupted else exit_code(outcomes)


def _asked(paths: Iterable[Path], allow_user_code: bool) -> tuple[list[Path], list[Path]]:
    """Return the files of cases, and those of the user's own code that may be run."""
    files, subjects = entry_files(paths), subject_files(paths)
    if subjects and not allow_user_code:
        own = f"{counted(len(subjects), 'entry', 'entries')} of your own code"
        if not files:
            raise UsageError(f"{own}, and no case", "add --allow-user-code")
        print(f"{own} not run; add --allow-user-code", file=sys.stderr)
        return files, []
    return files, subjects


def _results(
    files: Sequence[Path],
    subjects: Sequence[Path],
    here: CommandWorlds,
    deadline: float | None,
    explain: Explain,
) -> Generator[ReplayResult, None, None]:
    """Yield what each case comes to, and then each entry of the user's own code."""
    of_cases = replay_files(
        files,
        here.start,
        device=here.config.device,
        num_ranks=here.config.size,
        deadline=deadline,
        explain=explain,
        one_size=here.one_size,
        halt=here.control.halt,
    )
    with here.ending_with_signals(), contextlib.closing(of_cases):
        yield from of_cases
    if here.control.interrupted and subjects:
        raise Stopped
    yield from replay_subjects(subjects, here.config, here.config.size, deadline)


def _as_line(result: ReplayResult, updated: str) -> str:
    took = f"  {result.seconds:.1f} s" if result.seconds else ""
    said = f"  {' '.join(result.message.split())}" if result.message else ""
    wrote = f"  [updated: {updated}]" if updated else ""
    return f"{result.outcome:<12}  {result.path}{took}{said}{wrote}"


def _as_json(result: ReplayResult, updated: str) -> str:
    return msgspec.json.encode(
        {
            "path": str(result.path),
            "outcome": result.outcome,
            "seconds": round(result.seconds, 3),
            "message": result.message,
            "torch": result.torch,
            "updated": updated,
        }
    ).decode()


def _summary(outcomes: list[Outcome], num_files: int, interrupted: bool) -> str:
    counts = ", ".join(
        f"{outcomes.count(outcome)} {outcome}" for outcome in Outcome if outcome in outcomes
    )
    if interrupted:
        left = f"interrupted, {num_files - len(outcomes)} not replayed"
        return f"replayed {len(outcomes)}: {counts}; {left}" if counts else left
    return f"replayed {len(outcomes)}: {counts or 'no cases found'}"
