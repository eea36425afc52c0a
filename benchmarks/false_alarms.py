"""Runs cases on torch as it is and asks for an explanation of every verdict that is not PASS.

An explanation is a documented refusal of torch, or a saved finding with the same signature whose cause the
case has. Whatever has none is listed, and its case saved; then the exit code is 1.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from common import configure, describe_machine, machine_line, make_console, make_parser, print_json, run_main
from rich.table import Table

from fuzzshard.campaign.judge import SHRINK_BUDGET, confirm_and_shrink, judge
from fuzzshard.campaign.known import Found, Known, Registry, cause_of
from fuzzshard.campaign.prefetch import Prefetch
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.entry import encode_entry, make_entry, read_entry
from fuzzshard.corpus.store import CASE_FILE, UNSHRUNK_FILE, entry_files
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INTERRUPTED, InvalidEntry
from fuzzshard.guidance import Feedback, Guidance, guided
from fuzzshard.strategies import case_stream
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World

PASSED, REFUSED, KNOWN, UNEXPLAINED = "pass", "documented refusal", "known finding", "UNEXPLAINED"


@dataclasses.dataclass
class Unexplained:
    """A verdict that nothing explains. ``repeats`` says whether fresh ranks give it again."""

    index: int
    status: str
    signature: str
    rung: str
    what: str
    repeats: bool
    path: str


def load_known(corpus: Path) -> Registry:
    """The findings saved in ``corpus``, as a campaign knows those that it has made itself."""
    registry = Registry()
    for file in entry_files([corpus]) if corpus.exists() else ():
        try:
            entry = read_entry(file)
        except InvalidEntry:
            continue
        if not entry.status.is_finding:
            continue
        unshrunk = file.with_name(UNSHRUNK_FILE)
        found = codec.decode(unshrunk.read_bytes()) if unshrunk.exists() else entry.case
        registry.known.append(Known(entry.signature, file.parent, cause_of(entry.case, found), hits=0))
    return registry


def explain(found: Found, registry: Registry) -> str:
    """Why the verdict is what it is; a hit of a known finding is counted in ``registry``."""
    status = found.verdict.status
    if status is Status.PASS:
        return PASSED
    if status is Status.REJECTED:
        return REFUSED
    if status.is_finding and registry.hit(found):
        return KNOWN
    return UNEXPLAINED


def summarise(verdict: Verdict) -> str:
    """One line of what a verdict says."""
    if verdict.findings:
        first = verdict.findings[0]
        where = f" {first.name}" if first.name else ""
        size = f", error {first.error:.2e}, bound {first.bound:.2e}" if first.error and first.bound else ""
        return f"{first.oracle}{where} at op {first.op}: {first.observed}, expected {first.expected}{size}"
    return verdict.message


def note_kind(note: str) -> str:
    """A note without the names of one case: modules in parentheses, parameters in quotes."""
    return shorten(re.sub(r" ?\((?=\w).*|'[^']*'", "...", note), 160)


def shorten(text: str, limit: int = 200) -> str:
    """One line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


class Examination:
    """Runs cases in one world and keeps the counts."""

    def __init__(self, world: World, registry: Registry, keep: Path) -> None:
        self.world = world
        self.registry = registry
        self.keep = keep
        self.statuses: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.rungs: Counter[str] = Counter()
        self.explanations: Counter[str] = Counter()
        self.unexplained: list[Unexplained] = []

    def add(self, index: int, case: Case, verdict: Verdict) -> Unexplained | None:
        """Takes in one verdict; returns what it adds to the list of the unexplained."""
        self.statuses[verdict.status] += 1
        self.notes.update(f"{engine} {note_kind(note)}" for engine, note in verdict.notes.items())
        self.rungs[f"{verdict.status} {verdict.rung}".strip()] += 1
        found = Found(index, case, verdict)
        explanation = explain(found, self.registry)
        if explanation == UNEXPLAINED and verdict.status.is_finding:
            explanation = self._explain_shrunk(found)
        self.explanations[explanation] += 1
        if explanation != UNEXPLAINED:
            return None
        again = judge(self.world, case, fresh=True)
        entry = Unexplained(
            index=index,
            status=verdict.status,
            signature=verdict.signature,
            rung=verdict.findings[0].rung if verdict.findings else verdict.rung,
            what=shorten(summarise(verdict)),
            repeats=again.status is verdict.status and again.signature == verdict.signature,
            path=str(self._save(found)),
        )
        self.unexplained.append(entry)
        return entry

    def _explain_shrunk(self, found: Found) -> str:
        """Shrinks a finding that no cause covers; one that ends at a known one teaches what its cause is."""
        judged = confirm_and_shrink(
            self.world, found.case, found.verdict, emit=lambda event: None, budget=SHRINK_BUDGET
        )
        shrunk = Found(found.index, judged.case, judged.verdict)
        if (known := self.registry.hit(shrunk)) is None:
            return UNEXPLAINED
        known.cause &= cause_of(judged.case, found.case)
        return KNOWN

    def _save(self, found: Found) -> Path:
        folder = self.keep / f"{found.index:06d}"
        entry = make_entry(found.case, found.verdict, self.world.info)
        write_atomic(folder / CASE_FILE, encode_entry(entry))
        return folder

    def result(self) -> dict[str, Any]:
        """The counts, as plain values."""
        return {
            "cases": self.statuses.total(),
            "statuses": dict(self.statuses.most_common()),
            "rungs": dict(self.rungs.most_common()),
            "explanations": dict(self.explanations.most_common()),
            "notes": dict(self.notes.most_common()),
            "known": {str(k.path): k.hits for k in self.registry.known if k.hits},
            "signatures": dict(Counter(f"{u.status} {u.signature}" for u in self.unexplained).most_common()),
            "unexplained": [dataclasses.asdict(u) for u in self.unexplained],
        }


def make_tables(result: dict[str, Any]) -> list[Table]:
    """One table for each kind of count."""
    tables = []
    titles = {
        "rungs": "Verdicts by status and rung",
        "explanations": "Explanations",
        "notes": "Refused or not applicable",
        "known": "Hits of known findings",
        "signatures": "Unexplained by signature",
    }
    for key, title in titles.items():
        table = Table(title=title, title_justify="left")
        table.add_column(key)
        table.add_column("cases", justify="right")
        for name, count in result[key].items():
            table.add_row(shorten(name, 140), str(count))
        if result[key]:
            tables.append(table)
    return tables


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="cases to run")
    parser.add_argument("--known", type=Path, default=Path("corpus/findings"), help="saved findings")
    parser.add_argument("--guidance", choices=get_args(Guidance), default="none", help="what chooses cases")
    parser.add_argument("--keep", type=Path, help="folder for unexplained cases; None: a temporary one")
    args = parser.parse_args()
    config, console = configure(args), make_console(args)
    keep = args.keep or Path(tempfile.mkdtemp(prefix="fuzzshard-unexplained-"))
    interrupted = False
    began = time.monotonic()
    with World(config) as world:
        world.start()
        machine = describe_machine(world.info, config.size)
        console.print(machine_line(machine, args.seed))
        console.print(f"unexplained cases are saved in {keep}")
        examination = Examination(world, load_known(args.known), keep)
        stream = case_stream(args.seed, world_size=config.size, cuda=config.device == "cuda")
        on_cuda = config.device == "cuda"
        learner = guided(args.guidance, stream, args.seed, world_size=config.size, cuda=on_cuda)
        cases = Prefetch(learner, ahead=4, limit=args.cases)
        try:
            while (taken := cases.take()) is not None:
                verdict = judge(world, taken[1])
                cases.tell(Feedback(taken[1], verdict.status is Status.PASS))
                if (entry := examination.add(*taken, verdict)) is not None:
                    repeats = "" if entry.repeats else " (did not repeat)"
                    name = f"{entry.status} {entry.signature}".strip()
                    console.print(f"case {entry.index}: {name}{repeats}: {entry.what}")
        except KeyboardInterrupt:
            interrupted = True
        finally:
            cases.close()
    seconds = time.monotonic() - began
    result = {**examination.result(), "seconds": seconds, "seed": args.seed, "machine": machine}
    if args.json:
        print_json(result)
    else:
        for table in make_tables(result):
            console.print(table)
        count = len(examination.unexplained)
        console.print(f"{result['cases']} cases in {seconds:.0f} s, {count} unexplained, in {keep}")
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FINDING if examination.unexplained else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
