"""How often random cases combine what each upstream test combines: a row for each test.

python benchmarks/coverage_map.py --cases 5000 --world-size 8
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

from upstream_rows import UPSTREAM_ROWS

from fuzzshard.case.features import features
from fuzzshard.strategies import draw_cases


def count_rows(seed: int, num_cases: int, world_size: int) -> Counter[str]:
    """By row, the number of cases that have all its features."""
    counts: Counter[str] = Counter(dict.fromkeys(UPSTREAM_ROWS, 0))
    for case in draw_cases(seed, num_cases, world_size=world_size):
        present = features(case)
        counts.update(row for row, wanted in UPSTREAM_ROWS.items() if wanted <= present)
    return counts


def markdown(counts: Counter[str], num_cases: int) -> str:
    """The table."""
    lines = [f"| row | of {num_cases} cases | features |", "|---|---|---|"]
    for row, wanted in UPSTREAM_ROWS.items():
        lines.append(f"| {row} | {counts[row]} | {', '.join(sorted(wanted))} |")
    return "\n".join(lines)


def main() -> int:
    """Prints the table, or the counts as JSON; 1 if some row has no case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the stream of cases")
    parser.add_argument("--cases", type=int, default=5000, help="how many cases to draw")
    parser.add_argument(
        "--world-size", type=int, default=8, help="ranks of the world they are drawn for"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    counts = count_rows(args.seed, args.cases, args.world_size)
    if args.json:
        print(
            json.dumps({"cases": args.cases, "world_size": args.world_size, "rows": dict(counts)})
        )
    else:
        print(markdown(counts, args.cases))
    return int(min(counts.values()) == 0)


if __name__ == "__main__":
    raise SystemExit(main())
