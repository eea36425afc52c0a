"""What a contract is, and which release of torch is asked about."""

from __future__ import annotations

import dataclasses
import functools
from importlib import metadata

from packaging.version import Version

from fuzzshard.errors import UsageError

OLDEST_TORCH = "2.13"
"""The oldest release that is supported, as ``pyproject.toml`` says."""
NEWEST_TORCH = "2.15"
"""The newest release that rules and mends were tried on."""


@functools.cache
def installed_torch() -> str:
    """Return the version of torch that ranks will import, without importing it. Raises
    :class:`UsageError` if there is none.
    """
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        problem = "torch is not installed in the environment of fuzzshard"
        raise UsageError(problem, f"pip install 'torch>={OLDEST_TORCH}'") from error


@functools.lru_cache(maxsize=64)
def _release(torch: str) -> tuple[int, ...]:
    """Return the numbers of a version: a pre-release or a build from source counts as the release
    it becomes.
    """
    return Version(torch).release


@dataclasses.dataclass(frozen=True)
class Releases:
    """The releases of torch from ``since`` up to, but without, ``until``.

    An empty ``since`` means every supported release before ``until``; an empty ``until`` means
    every release since.
    """

    since: str = ""
    until: str = ""

    def include(self, torch: str | None = None) -> bool:
        """Return whether version ``torch``, by default the installed one, is among them."""
        now = _release(installed_torch() if torch is None else torch)
        after = not self.since or now >= _release(self.since)
        return after and (not self.until or now < _release(self.until))

    def text(self) -> str:
        """Return the range in words, such as ``"2.14 and later"`` or ``"2.13 to before 2.15"``."""
        if self.since and self.until:
            return f"{self.since} to before {self.until}"
        if self.since or self.until:
            return f"{self.since} and later" if self.since else f"before {self.until}"
        return "every release"


def untried_lines(torch: str) -> list[str]:
    """Return a warning if version ``torch`` is older than any that is supported, or newer than
    any that was tried, else nothing.
    """
    if not Releases(since=OLDEST_TORCH).include(torch):
        return [
            f"torch {torch} is older than {OLDEST_TORCH}, the oldest that fuzzshard supports: its "
            "bugs and rules are not known here, so findings may be neither new nor true"
        ]
    newest = _release(NEWEST_TORCH)
    if _release(torch)[: len(newest)] <= newest:
        return []
    return [
        f"torch {torch} is newer than {NEWEST_TORCH}, the newest that fuzzshard was tried on: a "
        "rule of torch may have changed since, so read findings with that in mind"
    ]


@dataclasses.dataclass(frozen=True)
class Contract:
    """One rule that holds in the releases of torch from ``since`` up to, but without, ``until``.

    ``says`` is the rule in our words, ``quote`` torch's own, ``source`` the docstring, release
    note or file that has them. ``since`` and ``until`` are those of :class:`Releases`.
    """

    name: str
    says: str
    quote: str
    source: str
    since: str = ""
    until: str = ""

    def holds(self, torch: str | None = None) -> bool:
        """Return whether the rule holds in version ``torch``, by default the installed one."""
        return Releases(self.since, self.until).include(torch)
