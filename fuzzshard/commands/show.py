"""``fuzzshard show``: a case drawn as text."""

from __future__ import annotations

import difflib
from pathlib import Path

from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import only_case
from fuzzshard.errors import EXIT_CLEAN, UsageError, did_you_mean
from fuzzshard.mending.mend import own_mends


def show(path: Path, /) -> int:
    """Draw one case, or tell about a known bug.

    For an entry of a corpus, it prints the finding, observed against expected
    values, and how to replay it. For every case: the model with widths and
    parameter shapes, the forward as a graph, the wrap groups, what is frozen,
    the mesh, the schedule as a numbered program, and the features. For a known
    bug: what is wrong in torch and why, who runs into it, and where its fix is.
    For the entries of a corpus, see fuzzshard corpus list.

    For example:
      fuzzshard show corpus/findings/NAME
      fuzzshard show corpus/findings/NAME/unshrunk.json
      fuzzshard show optimizer_is_stepped_for_its_state

    Parameters
    ----------
    path
        An entry, a case file, or the name of a known bug, as "fuzzshard explain" and "fuzzshard
        corpus causes" print it.
    """
    from rich.console import Console

    from fuzzshard.report.show import as_text, drawn, show_mend

    console = Console()
    target = console if console.is_terminal else None
    if not path.exists():
        name = str(path)
        if known := own_mends().get(name):
            print(as_text(show_mend(known), target))
            return EXIT_CLEAN
        if path.parent == Path():
            meant = did_you_mean(*difflib.get_close_matches(name, own_mends(), n=1))
            problem = f"{name} is neither a file nor a known bug{meant}"
            raise UsageError(problem, "fuzzshard corpus causes lists known bugs")
    file = only_case(path)
    print(drawn(read_entry(file), shown_path(file), target))
    return EXIT_CLEAN
