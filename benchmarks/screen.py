"""What screens cost, how often real ranks do not confirm them, and what they see.

Three parts. Fresh cases: both screens take turns, and what they suspect runs on real ranks under
the same mends, if these hold its mesh. Planted bugs (--planted): fresh cases with each bug, until
one is suspected that is not without it. Corpus (--corpus): entries whose finding needs no
reference, on torch as it is. Seconds are those of processors, so a busy machine counts for little.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from common import (
    configure,
    describe_machine,
    figures_table,
    machine_line,
    make_console,
    make_parser,
    print_json,
    run_main,
)
from hunt_rows import FOUND, MISSED, NOT_APPLICABLE, PlantedBug, mutants, read_index
from rich.console import Console

from fuzzshard.campaign.explain import OnMends
from fuzzshard.campaign.judge import judge
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected
from fuzzshard.corpus.store import entry_files
from fuzzshard.errors import EXIT_CLEAN, InfraError
from fuzzshard.mending.mend import mends_for
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.oracle import TensorOracle
from fuzzshard.strategies import case_stream
from fuzzshard.world import World
from fuzzshard.world.screen import MOST_RANKS, Screen, Suspicion, screened

STRUCTURAL = ("crash", "registration", "hang")
"""Symptoms of planted bugs that need no reference, by the words of their index."""


@dataclasses.dataclass
class Screening:
    """Cases that were screened, and the seconds of processors that took."""

    screens: Sequence[Screen]
    cases: int = 0
    seconds: float = 0.0

    def suspicion(self, case: Case, mends: tuple[str, ...] = ()) -> Suspicion | None:
        """Ask one screen after the other, in turn."""
        screen = self.screens[self.cases % len(self.screens)]
        screen.world.start()
        process = psutil.Process(screen.world.pids[0])
        before = _seconds(process)
        found = screen.suspicion(case, mends)
        self.cases += 1
        if screen.world.pids:  # a dead one takes what it used along
            self.seconds += _seconds(process) - before
        return found


def _seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system) + time.process_time()


def fresh(
    screens: Sequence[Screen], real: World, cases: Iterable[Case], console: Console
) -> dict[str, Any]:
    """Screen fresh cases; suspicions run on real ranks."""
    screening, mends = Screening(screens), mends_for()
    drawn = confirmable = 0
    seen, kinds = Counter[str](), Counter[str]()
    for case in cases:
        drawn += 1
        if screened(case) is None:
            continue
        held = case.mesh.size <= real.config.size
        confirmable += held
        if (found := screening.suspicion(case, mends)) is None:
            continue
        outcome = "too large" if not held else _confirmation(real, case, found, mends)
        seen[outcome] += 1
        kinds[f"{outcome}: {found.signature}"] += 1
        first = found.findings[0]
        console.print(f"case {drawn - 1}, {outcome}: {found.signature}: {first.observed[:200]}")
    return {
        "drawn": drawn,
        "screened": screening.cases,
        "screen_ms_per_case": 1000 * screening.seconds / screening.cases,
        "cases_per_core_second": screening.cases / screening.seconds,
        "suspicions": sum(seen.values()),
        "confirmable_cases": confirmable,
        "unconfirmed": seen["unconfirmed"],
        "unconfirmed_share": seen["unconfirmed"] / max(1, confirmable),
        **{f"suspicions_{outcome.replace(' ', '_')}": count for outcome, count in seen.items()},
        "kinds": dict(kinds.most_common()),
    }


def _confirmation(real: World, case: Case, found: Suspicion, mends: tuple[str, ...]) -> str:
    verdict = judge(OnMends(real, mends), case)
    if not verdict.status.is_finding:
        return "unconfirmed"
    return "same" if verdict.signature == found.signature else "another finding"


def planted(
    bugs: Sequence[PlantedBug], mutants: Path, plain: Screen, seed: int, max_cases: int
) -> Iterator[dict[str, Any]]:
    """The first case in which each bug is suspected; ``plain`` has no bug."""
    mends = mends_for()
    for bug in bugs:
        cases = itertools.islice(case_stream(seed, world_size=MOST_RANKS), max_cases)
        file = (mutants / f"{bug.id}.py").resolve()
        row: dict[str, Any] = {"id": bug.id, "symptom": bug.symptom, "cases": 0, "outcome": MISSED}
        with Screen(preload=(str(file),)) as screen:
            try:
                screen.world.start()
            except InfraError:  # those without the bug have started
                yield {**row, "outcome": NOT_APPLICABLE}
                continue
            for case in filter(screened, cases):
                row["cases"] += 1
                found = screen.suspicion(case, mends)
                if found is not None and plain.suspicion(case, mends) is None:
                    row |= {"outcome": FOUND, "signature": found.signature}
                    break
        yield row


def of_corpus(screens: Sequence[Screen], folder: Path, console: Console) -> dict[str, Any]:
    """How many entries are suspected that show their finding here and need no reference for it."""
    torch = screens[0].world.info["torch"]
    counts = Counter[str]()
    for file in entry_files([folder]):
        entry = read_entry(file)
        if not _is_structural(entry) or expected(entry, torch, "cpu") is not Expected.FINDING:
            continue
        counts["entries"] += 1
        if screened(entry.case) is None or entry.case.mesh.size > MOST_RANKS:
            counts["not screened"] += 1
            continue
        found = list(filter(None, (screen.suspicion(entry.case) for screen in screens)))
        counts["suspected" if found else "missed"] += 1
        counts["same signature"] += entry.signature in [each.signature for each in found]
        if not found:
            console.print(f"missed {entry.signature}: {file.parent.name}")
    return dict(counts)


def _is_structural(entry: CorpusEntry) -> bool:
    if not entry.findings:
        return False
    first = entry.findings[0]
    return spec_of(first.engine).runs_alone != "no" and not isinstance(first.rule, TensorOracle)


def main() -> int:
    parser = make_parser(__doc__, world_size=4)
    parser.add_argument("--cases", type=int, default=2000, help="fresh cases to draw")
    parser.add_argument(
        "--planted",
        type=Path,
        help="folder with INDEX.json and mutants/, or with a Python file for each bug",
    )
    parser.add_argument("--only", help="ids of planted bugs, separated by commas")
    parser.add_argument("--max-cases", type=int, default=500, help="cases for each planted bug")
    parser.add_argument("--corpus", type=Path, help="folder of entries")
    args = parser.parse_args()
    config, console = configure(args), make_console(args)
    result: dict[str, Any] = {"seed": args.seed}
    with World(config) as real, Screen("first") as first, Screen("last") as last:
        first.world.start()
        machine = describe_machine(first.world.info, config.size)
        console.print(machine_line(machine, args.seed))
        if args.cases:
            cases = itertools.islice(case_stream(args.seed, world_size=MOST_RANKS), args.cases)
            result |= fresh((first, last), real, cases, console)
        rows = []
        if args.planted:
            only = frozenset(args.only.split(",")) if args.only else None
            bugs = read_index(args.planted, only)
            for row in planted(bugs, mutants(args.planted), first, args.seed, args.max_cases):
                rows.append(row)
                name = f"{row['id']} ({row['symptom']})"
                seen = row.get("signature", "")
                console.print(f"{name}: {row['outcome']} {seen} after {row['cases']} cases")
        applying = [row for row in rows if row["outcome"] != NOT_APPLICABLE]
        structural = [row for row in applying if row["symptom"] in STRUCTURAL]
        corpus = of_corpus((first, last), args.corpus, console) if args.corpus else {}
    result |= {
        "structural_recall": _share(structural) if structural else None,
        "planted": rows,
        "planted_recall": _share(applying) if applying else None,
        "corpus": corpus,
        "corpus_recall": corpus["suspected"] / corpus["entries"] if corpus else None,
        "machine": machine,
    }
    if args.json:
        print_json(result)
    else:
        shown = {k: v for k, v in result.items() if not isinstance(v, list)}
        console.print(figures_table("Screens", shown))
    return EXIT_CLEAN


def _share(rows: Sequence[dict[str, Any]]) -> float:
    return sum(row["outcome"] == FOUND for row in rows) / len(rows)


if __name__ == "__main__":
    run_main(main)
