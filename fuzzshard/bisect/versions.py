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
    return list(in_order({_version(word) for word in words}))


def _version(word: str) -> str:
    """One version with the three numbers that torch's have, so that an entry names it once."""
    try:
        version = Version(word)
    except InvalidVersion:
        raise UsageError(
            f'"{word}" is no version of torch', "write versions as in --torch 2.12.1,2.13.0"
        ) from None
    whole = f"{version.major}.{version.minor}.{version.micro}"
    short = ".".join(map(str, version.release))
    return str(version) if len(version.release) > 2 else str(version).replace(short, whole, 1)
