"""The versions to try: parsed, sorted, each once."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from fuzzshard.corpus.lifecycle import in_order
from fuzzshard.errors import UsageError


def parse_versions(text: str) -> list[str]:
    """``"2.10.0,2.9.1"`` -> ``["2.9.1", "2.10.0"]``; raises :class:`UsageError` for what is no
    version.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("no version of torch is given", "write --torch 2.12.1,2.13.0")
    try:
        return list(in_order({str(Version(word)) for word in words}))
    except InvalidVersion as error:
        raise UsageError(
            " ".join(str(error).split()).rstrip("."), "write versions as in --torch 2.12.1,2.13.0"
        ) from None
