"""The versions to try: parsed, sorted, each once."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from fuzzshard.corpus.lifecycle import in_order
from fuzzshard.errors import UsageError


def parse_versions(text: str) -> list[str]:
    """``"2.10.0,2.9.1"`` -> ``["2.9.1", "2.10.0"]``; raises :class:`UsageError` for what is no
    version.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("no version of torch is given", "write --torch 2.9.1,2.10.0")
    try:
        return list(in_order({str(Version(word)) for word in words}))
    except InvalidVersion as error:
        raise UsageError(
            " ".join(str(error).split()).rstrip("."), "write versions as in --torch 2.9.1,2.10.0"
        ) from None


def summary(bad: Iterable[str], good: Iterable[str]) -> str:
    """The first bad version and the first good ones before and after it: where the finding came
    and went.
    """
    bad, good = in_order(set(bad)), in_order(set(good))
    if not bad:
        return (
            f"no version shows the finding; first good: {good[0]}"
            if good
            else "no version could be judged"
        )
    before = [v for v in good if Version(v) < Version(bad[0])]
    after = [v for v in good if Version(v) > Version(bad[0])]
    parts = [f"first bad: {bad[0]}"]
    parts += [f"last good before it: {before[-1]}"] if before else []
    parts.append(f"first good after it: {after[0]}" if after else "no good one after it")
    return "; ".join(parts)
