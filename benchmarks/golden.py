"""Writes down the verdict of every saved case and of drawn ones, or holds a tree against what was
written.

Made before a change of the code that should change no verdict, and compared after it: each case
that is judged otherwise, on fresh ranks too, is a line, and the exit code is 1. The drawn cases
are in the file, as a change may draw others from the same seed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from common import configure_worlds, make_console, make_parser, run_main

from fuzzshard.analysis.needs import unfit_for
from fuzzshard.campaign.judge import judge
from fuzzshard.case.case import Case
from fuzzshard.case.codec import decode, encode
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.store import CASE_FILE, entry_files
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING
from fuzzshard.strategies import case_stream
from fuzzshard.verdict import Verdict
from fuzzshard.world import World, WorldConfig

Golden = dict[str, list[str]]
"""For each case its status and its signature, by its folder or by its text, if it was drawn."""


def all_cases(args: argparse.Namespace, size: int, before: Golden) -> Iterator[tuple[str, Case]]:
    """The saved cases that fit a world of ``size``, then the drawn ones, perhaps those of
    ``before``.
    """
    for file in entry_files(args.corpora):
        case = read_entry(file).case
        if case.mesh.size <= size and unfit_for(case, "cpu") is None:
            yield (file.parent if file.name == CASE_FILE else file).name, case
    drawn = [decode(text) for text in before if text.startswith("{")]
    stream = case_stream(args.seed, world_size=size)
    for case in drawn or itertools.islice(stream, args.cases):
        yield encode(case).decode(), case


def told(verdict: Verdict) -> list[str]:
    """What of a verdict has to stay."""
    return [str(verdict.status), verdict.signature]


def run_all(cases: list[tuple[str, Case]], config: WorldConfig, before: Golden) -> Golden:
    """The verdicts of one world. What differs from ``before`` is judged again on fresh ranks."""
    golden: Golden = {}
    with World(config) as world:
        for name, case in cases:
            verdict = judge(world, case)
            if name in before and told(verdict) != before[name]:
                verdict = judge(world, case, fresh=True)
            golden[name] = told(verdict)
    return golden


def main() -> int:
    """Writes or compares; returns the exit code."""
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument(
        "what", choices=("write", "compare"), help="write the file, or compare with it"
    )
    parser.add_argument("file", type=Path, help="where the verdicts are, as JSON")
    parser.add_argument("--cases", type=int, default=2000, help="cases to draw")
    parser.add_argument(
        "--corpora", type=Path, nargs="+", default=[Path("corpus/findings")], help="saved cases"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="worlds that run cases at the same time"
    )
    args = parser.parse_args()
    console = make_console(args)
    before: Golden = json.loads(args.file.read_text()) if args.what == "compare" else {}
    configs = configure_worlds(args, args.jobs)
    cases = list(all_cases(args, configs[0].size, before))
    with concurrent.futures.ThreadPoolExecutor(len(configs)) as pool:
        runs = [
            pool.submit(run_all, cases[number :: len(configs)], config, before)
            for number, config in enumerate(configs)
        ]
        after = {name: line for run in runs for name, line in run.result().items()}
    if args.what == "write":
        args.file.write_text(json.dumps(after, indent=0, sort_keys=True) + "\n")
        console.print(f"{len(after)} verdicts in {args.file}")
        return EXIT_CLEAN
    changed = [name for name in before if name in after and after[name] != before[name]]
    for name in changed:
        console.print(f"{name}: {' '.join(before[name])} became {' '.join(after[name])}")
    console.print(f"{len(changed)} of {len(before.keys() & after.keys())} verdicts changed")
    return EXIT_FINDING if changed else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
