"""Runs a campaign with a planted fault while ranks are killed and stopped, disks fill up, and it
is killed.

Every ``--kill-every`` the campaign is ended in one of four ways, and the same command starts it
again. At the end one session is left alone until it has done what is left. Then the journal is
held against what was said: every case that was started has its verdict or was in flight when its
session ended, nothing that was said is missing, the findings on disk are those of the journal, and
the planted fault was saved once. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from case_runs import case_runs
from chaos_campaign import ENDINGS, Session
from common import make_console, make_parser, run_main, tell_wrong
from rich.console import Console
from rich.table import Table

from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.distinct import finding_key
from fuzzshard.corpus.store import CASE_FILE, FINDINGS_FOLDER
from fuzzshard.errors import FuzzshardError
from fuzzshard.events import FindingSaved
from fuzzshard.journal.history import History
from fuzzshard.journal.schema import JOURNAL_FILE
from fuzzshard.options import parse_duration

FAULT = Path(__file__).parent / "faults" / "set_divide_factor_raises.py"
SIGNATURE = "crash/fully_shard/KeyError in set_gradient_divide_factor"
KNOWN = Path(__file__).parents[1] / "corpus" / FINDINGS_FOLDER
END_SECONDS = 240.0
"""How long a session may take to end: a case in flight, and saving."""
LAST_SECONDS = 1800.0
"""How long the last one may take, which confirms and shrinks what the others left."""
FEWEST_CASES = 40
"""So many show the planted fault. On a busy machine all others together may have run fewer."""


def torment(
    sessions: list[Session], corpus: Path, arguments: list[object], args: Any, console: Console
) -> list[str]:
    """Sessions until the time is over, and one that is left alone; what was wrong with how they
    ended.
    """
    rng = random.Random(args.seed)
    endings = itertools.cycle(rng.sample(ENDINGS, len(ENDINGS)))
    began, wrong = time.monotonic(), []
    while (left := args.time - (time.monotonic() - began)) > 0:
        session = Session(corpus, arguments)
        sessions.append(session)
        end = time.monotonic() + min(left, rng.uniform(0.5, 1.5) * args.kill_every)
        while time.monotonic() < end and session.running():
            time.sleep(rng.uniform(0.5, 1.5) * args.disturb_every)
            session.disturb(rng)
        if session.running():
            session.end(next(endings), rng)
        problems = session.wait(END_SECONDS)
        wrong += [f"session {len(sessions)}: {problem}" for problem in problems]
        judged = session.counts["case_judged"]
        console.print(f"session {len(sessions)}: {session.ending} after {judged} cases", *problems)
    with History(corpus / JOURNAL_FILE) as history:
        done = history.counts(1).total() + len(list(history.events(1, "case_held_back")))
    sessions.append(Session(corpus, [*arguments, "--max-cases", max(done, FEWEST_CASES)]))
    return wrong + [f"last session: {problem}" for problem in sessions[-1].wait(LAST_SECONDS)]


def check_cases(history: History, sessions: list[Session], worlds: int) -> list[str]:
    """Every session in the journal against what it said.

    An event is written before it is said, so a kill leaves at most one that was written only. What
    follows one that a full disk refused is said only, and nothing is before.
    """
    noted, wrong = history.sessions(), []
    if [session.campaign for session in noted] != [1] * len(sessions):
        wrong.append(
            f"{len(noted)} sessions in the journal, {len(sessions)} were run, not all of one "
            "campaign"
        )
    runs = list(case_runs(history, 1))
    for said, session in zip(sessions, noted, strict=False):
        mine = [run for run in runs if run.session == session.id]
        judged = [run for run in mine if run.status is not None]
        if len({run.number for run in mine}) < len(mine):
            wrong.append(f"session {session.id} ran a case twice")
        if (in_flight := len(mine) - len(judged)) > worlds:
            wrong.append(f"session {session.id}: {in_flight} cases in flight in {worlds} worlds")
        for name, runs_of_it in (("case_started", mine), ("case_judged", judged)):
            written, told = {run.number for run in runs_of_it}, said.cases[name]
            if said.ending == "disk full":
                whole = set(told[: len(written)]) == written
            else:
                whole = written >= set(told) and len(written) <= len(told) + 1
            if not whole:
                wrong.append(
                    f"session {session.id}: {len(written)} {name} written, {len(told)} said"
                )
    finished = sessions[-1].finished
    if finished is None or finished["counts"] != history.counts(1):
        wrong.append(
            "the last summary does not count what the journal does: "
            f"{finished and finished['counts']}"
        )
    return wrong


def check_findings(history: History, corpus: Path, known: set[str]) -> list[str]:
    """The findings of the journal against those on disk; the planted one is there once."""
    saved = [told.event for told in history.events(1, "finding_saved")]
    made = [each for each in saved if isinstance(each, FindingSaved) and not each.duplicate]
    wrong = [
        f"{path} was saved {n} times"
        for path, n in Counter(each.path for each in made).items()
        if n > 1
    ]
    found = Counter(told.event.path for told in history.events(1, "finding_found"))
    wrong += [f"{path} was told {n} times" for path, n in found.items() if n > 1]
    folders = {
        folder for folder in (corpus / FINDINGS_FOLDER).iterdir() if folder.name not in known
    }
    entries = {folder: read_entry(folder / CASE_FILE) for folder in folders}
    if (told := {each.path for each in made}) != (there := {str(folder) for folder in folders}):
        wrong.append(f"findings in the journal only: {told - there}, on disk only: {there - told}")
    wrong += [
        f"{folder} is not confirmed"
        for folder, entry in entries.items()
        if entry.confirmed is None
    ]
    keys = Counter(finding_key(entry.signature, entry.case) for entry in entries.values())
    wrong += [
        f"{signature} has two entries with one case" for (signature, _), n in keys.items() if n > 1
    ]
    planted = sum(each.signature == SIGNATURE for each in made)
    if planted != 1:
        wrong.append(f"the planted fault was saved {planted} times")
    return wrong


def summary(history: History, sessions: list[Session]) -> dict[str, Any]:
    """What happened, in figures."""
    runs = list(case_runs(history, 1))
    happened = sum((session.happened for session in sessions), Counter[str]())
    endings = Counter(session.ending for session in sessions)
    saved = [told.event for told in history.events(1, "finding_saved")]
    planted = [
        each for each in saved if isinstance(each, FindingSaved) and each.signature == SIGNATURE
    ]
    return {
        "sessions": len(sessions),
        **{f"sessions {name}": count for name, count in sorted(endings.items())},
        **happened,
        "cases started": len(runs),
        "verdicts": sum(run.status is not None for run in runs),
        "in flight when a session ended": sum(run.status is None for run in runs),
        **{f"verdicts {name}": count for name, count in history.counts(1).most_common()},
        "findings saved": sum(
            isinstance(each, FindingSaved) and not each.duplicate for each in saved
        ),
        "planted fault saved": len(planted),
    }


def make_table(result: dict[str, Any]) -> Table:
    """A row for each figure."""
    table = Table(title="Chaos", title_justify="left", show_header=False)
    for name, count in result.items():
        table.add_row(name, str(count))
    return table


def main() -> int:
    """Makes chaos, checks, and prints a table."""
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--time", type=parse_duration, default="1h", help="how long: 10m, 1h")
    parser.add_argument(
        "--kill-every", type=parse_duration, default="3m", help="mean time between two ends"
    )
    parser.add_argument(
        "--disturb-every", type=parse_duration, default="10s", help="mean time between two ranks"
    )
    parser.add_argument("--worlds", type=int, default=1)
    parser.add_argument(
        "--corpus", type=Path, help="where to leave it; by default it is thrown away"
    )
    args = parser.parse_args()
    console = make_console(args)
    with tempfile.TemporaryDirectory(prefix="fuzzshard-chaos-") as temporary:
        corpus = args.corpus or Path(temporary)
        known = {path.name for path in KNOWN.iterdir()}
        shutil.copytree(KNOWN, corpus / FINDINGS_FOLDER)
        arguments = ["--seed", args.seed, "--device", args.device, "--world-size", args.world_size]
        arguments += ["--worlds", args.worlds, "--preload", FAULT]
        sessions: list[Session] = []
        wrong = torment(sessions, corpus, arguments, args, console)
        with History(corpus / JOURNAL_FILE) as history:
            try:
                wrong += [
                    str(row) for row in history.rows("PRAGMA integrity_check") if row != ("ok",)
                ]
                wrong += check_cases(history, sessions, args.worlds)
                wrong += check_findings(history, corpus, known)
            except FuzzshardError as error:
                wrong.append(str(error))
            result = summary(history, sessions)
    console.print(make_table(result))
    return tell_wrong(wrong, result, args, console)


if __name__ == "__main__":
    run_main(main)
