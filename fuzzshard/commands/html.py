"""``fuzzshard html``: campaigns as a page to look at."""

from __future__ import annotations

from pathlib import Path

from fuzzshard.commands.corpus_sets import complain
from fuzzshard.corpus.store import PAGE_FILE
from fuzzshard.options import Output, given


def html(
    *directories: Path,
    output: Output = None,
) -> int:
    """Write one HTML file with findings, scripts and cases.

    The file needs no other file and no network. Findings with one cause are
    one row, with the releases of torch that show it and the first case.
    Rows can be filtered by severity, component, cause and status. A campaign
    writes the same into its own directory; this is for a corpus without a
    campaign, and for several nodes together.

    Exit code 2: some entries cannot be read; the page has all others.

    For example:
      fuzzshard html corpus
      fuzzshard html corpus/findings -o findings.html
      fuzzshard html /data/node1 /data/node2 --output both.html

    Parameters
    ----------
    directories
        Corpora, or what was given to run as --corpus.
    output
        The file to write. By default report.html in the directory, or here for several.
    """
    from fuzzshard.report.html.page import write_page
    from fuzzshard.report.node import read_node, unreadable

    asked = given(directories, "html", "the --corpus of a fuzzshard run")
    if output is None:
        output = (asked[0] if len(asked) == 1 else Path()) / PAGE_FILE
    size = write_page(asked, output)
    print(f"{output}: {size:,} bytes")
    return complain(unreadable(map(read_node, asked)))
