"""``fuzzshard status``: where campaigns stand."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from fuzzshard.corpus.files import write_atomic
from fuzzshard.errors import EXIT_CLEAN, EXIT_USAGE, UsageError
from fuzzshard.options import Flag, Json, OutputFile, given

SECONDS_BETWEEN = 5.0
CLEAR = "\x1b[H\x1b[J"
"""Makes a terminal empty."""


def status(
    *directories: Path,
    as_json: Json = False,
    junit: OutputFile = None,
    watch: Flag = False,
) -> int:
    """Show the progress and findings of campaigns, running or ended, on one node or several.

    Exit code 2: some entries cannot be read; 0: all can, whatever was found.

    For example:
      fuzzshard status corpus
      fuzzshard status /data/node1 /data/node2 --json
      fuzzshard status corpus --junit results.xml
      fuzzshard status corpus --watch
      fuzzshard status /nfs/fuzz

    Parameters
    ----------
    directories
        What was given to run as --corpus, or a corpus without a campaign. Or one folder that was
        given as --exchange.
    as_json
        Print one JSON object with the sum, each folder and each finding.
    junit
        Also write a JUnit XML file: a failing test for each distinct finding, and a test for the
        campaign.
    watch
        Print it again every five seconds, until the campaigns end.
    """
    directories = given(directories, "status", "the --corpus of a fuzzshard run")
    while True:
        again, code = _say(directories, as_json=as_json, junit=junit, clear=watch)
        if not (watch and again):
            return code
        time.sleep(SECONDS_BETWEEN)


def _say(
    directories: tuple[Path, ...], *, as_json: bool, junit: Path | None, clear: bool
) -> tuple[bool, int]:
    """Say it once; return whether a campaign still runs, and the exit code."""
    from fuzzshard.report.exchange_status import exchange_lines, is_exchange, read_exchange
    from fuzzshard.report.junit import junit_xml
    from fuzzshard.report.node import read_node, unreadable
    from fuzzshard.report.seen_findings import seen_findings
    from fuzzshard.report.stats import stats_of
    from fuzzshard.report.status import status_json, status_lines

    above = CLEAR if clear and sys.stdout.isatty() else ""
    if any(map(is_exchange, directories)):
        if len(directories) > 1 or junit is not None:
            raise UsageError(
                "status of an exchange takes that folder alone, and no --junit",
                "make a corpus of it: fuzzshard merge EXCHANGE --into corpus",
            )
        (exchange,) = directories
        told, seen = read_exchange(exchange)
        if as_json:
            print(msgspec.json.encode(told).decode())
        else:
            print(above + "\n".join(exchange_lines(exchange, told, seen)), flush=True)
        return any(campaign.condition == "running" for campaign in told.campaigns), EXIT_CLEAN
    nodes = [read_node(directory) for directory in directories]
    findings = seen_findings(nodes)
    stats = stats_of(nodes, findings)
    if junit is not None:
        write_atomic(junit, junit_xml(nodes, stats, findings))
    if as_json:
        print(msgspec.json.encode(status_json(nodes, stats, findings)).decode())
    else:
        print(above + "\n".join(status_lines(nodes, stats, findings)), flush=True)
    return stats.state == "running", EXIT_USAGE if unreadable(nodes) else EXIT_CLEAN
