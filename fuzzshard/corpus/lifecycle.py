"""What becomes of a finding, and what is known of one version of torch."""

from __future__ import annotations

import enum

from packaging.version import Version


class Lifecycle(enum.StrEnum):
    """What has become of a recorded finding.

    ``OPEN``: the newest torch that was looked at has it. ``FIXED``: the newest one does not.
    ``WONTFIX``: it is there and will stay. ``FLAKY``: some runs show it.
    """

    OPEN = "open"
    FIXED = "fixed"
    WONTFIX = "wontfix"
    FLAKY = "flaky"


def release(torch: str) -> str:
    """Return the part of a version that a finding can depend on: ``"2.13.0"`` of ``"2.13.0+cpu"``.

    Builds of one release, or of one nightly, have the same source. A pre-release such as
    ``"2.14.0a0+git1f3a09b"`` may be any commit of months, so its local part stays.
    """
    version = Version(torch)
    is_any_commit = version.is_prerelease and not version.is_devrelease
    return (
        f"{version.public}+{version.local}" if is_any_commit and version.local else version.public
    )


def in_order(releases: set[str]) -> tuple[str, ...]:
    """Return them oldest first."""
    return tuple(sorted(releases, key=Version))
