"""``fuzzshard merge``: the corpora of several nodes as one."""

from __future__ import annotations

from pathlib import Path

from fuzzshard.commands import corpus_sets


def merge(*directories: Path, into: Path) -> int:
    """Join the findings of several campaigns in one corpus: corpus merge by another name.

    Of each signature and set of features the smallest case is kept. The
    campaigns stay as they are, with their journals: to see them together,
    give their directories to status and to html.

    For example:
      fuzzshard merge /data/node1 /data/node2 --into corpus

    Parameters
    ----------
    directories
        Campaigns, corpora or entries to take from.
    into
        The corpus to add to; it is created where there is none.
    """
    return corpus_sets.merge(*directories, corpus=into)
