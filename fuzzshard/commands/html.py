"""``fuzzshard html``: campaigns as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fuzzshard.commands.options import OutputFile, campaign_directories
from fuzzshard.errors import EXIT_CLEAN


def html(
    *directories: Path,
    output: Annotated[OutputFile, Parameter(name=("--output", "-o"))] = Path("report.html"),
) -> int:
    """Write one HTML file with plots, findings, scripts and drawings of the cases.

    The file needs no other file and no network. Findings can
    be filtered by severity, component, cause and status. A campaign writes
    the same into its own directory; this is for a corpus without a campaign,
    and for several nodes together.

    For example:
      fuzzshard html corpus
      fuzzshard html corpus/findings -o findings.html
      fuzzshard html /data/node1 /data/node2 --output both.html

    Parameters
    ----------
    directories
        Corpora, or what was given to run as --corpus.
    output
        The file to write.
    """
    from fuzzshard.report.html.page import write_page

    size = write_page(campaign_directories(directories, "html"), output)
    print(f"{output}: {size:,} bytes")
    return EXIT_CLEAN
