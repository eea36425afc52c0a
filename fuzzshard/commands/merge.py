"""``fuzzshard merge``: the corpora of several nodes as one."""

from __future__ import annotations

from pathlib import Path

from fuzzshard.commands import corpus_sets


def merge(*directories: Path, into: Path) -> int:
    """Join the findings of several campaigns in one corpus, as corpus merge does.

    For each signature and set of features, the smallest case is kept. The
    campaigns stay as they are. To see their figures together, give their
    folders to status or html.

    For example:
      fuzzshard merge /data/node1 /data/node2 --into corpus

    Parameters
    ----------
    directories
        Campaigns, corpora or entries to take from.
    into
        The corpus to add to. It is created if it does not exist.
    """
    return corpus_sets.merge(*directories, corpus=into)
