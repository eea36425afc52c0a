"""The stacks of ranks, each once, without what nobody reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fuzzshard.case.phrases import span

_PER_PROCESS = re.compile(r"\b0x[0-9a-f]+\b|\bindex=\d+|\bcuda:\d+")
"""Addresses and devices: stacks that differ in nothing else are one."""
_MARKERS = re.compile(r"^[ ^~]+\n", re.MULTILINE)
"""The line in which a traceback underlines a part of the line above."""
_RANK = re.compile(r"(?:^| )rank (\d+)$")
_OWN = re.compile(r'\s*File "(?:fuzzshard/world|threading\.py)')


def distinct_stacks(stacks: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return whose stack it is, ``"ranks 0-3"``, and its text, once for all ranks that have it.

    The thread of each rank that only waits for messages of the coordinator is left out.
    """
    owners: dict[tuple[str, str], list[int]] = {}
    texts: dict[tuple[str, str], str] = {}
    for owner, stack in stacks.items():
        rank, text = _RANK.search(owner), _plain(stack)
        key = (owner if rank is None else owner[: rank.start()], _PER_PROCESS.sub("", text))
        texts.setdefault(key, text)
        owners.setdefault(key, []).extend([int(rank[1])] if rank else [])
    return [
        (" ".join(filter(None, (key[0], among(ranks) if ranks else ""))), texts[key])
        for key, ranks in owners.items()
    ]


def among(ranks: Sequence[int]) -> str:
    """``"rank 1"`` or ``"ranks 0-3"``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {span(ranks)}"


def _plain(stack: str) -> str:
    threads = _MARKERS.sub("", stack).strip("\n").split("\n\n")
    return "\n\n".join([thread for thread in threads if not _only_waits(thread)] or threads)


def _only_waits(thread: str) -> bool:
    head, *frames = thread.splitlines() or [""]
    return head.startswith("Thread 0x") and all(_OWN.match(frame) for frame in frames)
