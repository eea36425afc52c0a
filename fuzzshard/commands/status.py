"""``fuzzshard status``: where campaigns stand."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzzshard.errors import EXIT_CLEAN, EXIT_USAGE, UsageError
from fuzzshard.options import Json, given


def status(*directories: Path, as_json: Json = False) -> int:
    """Show the progress and findings of campaigns, running or ended, on one node or several.

    Exit code 2: some entries cannot be read; 0: all can, whatever was found.

    For example:
      fuzzshard status corpus
      fuzzshard status /data/node1 /data/node2 --json
      fuzzshard status /nfs/fuzz

    Parameters
    ----------
    directories
        What was given to run as --corpus, or a corpus without a campaign. Or one folder that was
        given as --exchange.
    as_json
        Print one JSON object with the sum, each folder and each finding.
    """
    from fuzzshard.report.exchange_status import exchange_lines, is_exchange, read_exchange
    from fuzzshard.report.node import read_node, unreadable
    from fuzzshard.report.seen_findings import seen_findings
    from fuzzshard.report.stats import stats_of
    from fuzzshard.report.status import status_json, status_lines

    directories = given(directories, "status", "the --corpus of a fuzzshard run")
    if any(map(is_exchange, directories)):
        if len(directories) > 1:
            raise UsageError(
                "status of an exchange takes that folder alone",
                "make a corpus of it: fuzzshard merge EXCHANGE --into corpus",
            )
        (exchange,) = directories
        told, seen = read_exchange(exchange)
        if as_json:
            print(msgspec.json.encode(told).decode())
        else:
            print(*exchange_lines(exchange, told, seen), sep="\n")
        return EXIT_CLEAN
    nodes = [read_node(directory) for directory in directories]
    findings = seen_findings(nodes)
    stats = stats_of(nodes, findings)
    if as_json:
        print(msgspec.json.encode(status_json(nodes, stats, findings)).decode())
    else:
        print(*status_lines(nodes, stats, findings), sep="\n")
    return EXIT_USAGE if unreadable(nodes) else EXIT_CLEAN
