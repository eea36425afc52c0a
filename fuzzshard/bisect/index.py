"""Which releases of torch a package index has for this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec

from packaging.version import InvalidVersion, Version

from fuzzshard.bisect.environment import Source, find_uv
from fuzzshard.corpus.lifecycle import release
from fuzzshard.errors import UsageError

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def versions_of_torch(source: Source, *, cpu: bool) -> list[str]:
    """Return what the index of ``source`` has, oldest first: releases, and nightlies if any.

    Of several builds of one release, one for the CPU comes first where ``cpu``, and else the one
    without a name. Raises :class:`UsageError` where pip cannot say it.
    """
    ran = subprocess.run(
        [*_pip(), "index", "versions", "torch", "--pre", *source.where()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    listed = re.search(r"^Available versions: (.+)$", ran.stdout, re.MULTILINE)
    if listed is None:
        *_, reason = ["no answer", *filter(None, map(str.strip, ran.stderr.splitlines()))]
        raise UsageError(
            f"pip cannot list the releases of torch: {reason.removeprefix('ERROR: ')}",
            "give --index-url, or versions with --torch",
        )
    return choose(listed[1].split(", "), cpu=cpu)


def choose(listed: Iterable[str], *, cpu: bool) -> list[str]:
    """Return one build of each release and nightly, oldest first."""
    builds: dict[str, Version] = {}
    for word in listed:
        try:
            version = Version(word)
        except InvalidVersion:
            continue
        if version.is_prerelease and not version.is_devrelease:
            continue
        name = release(word)
        if name not in builds or _preference(version, cpu) < _preference(builds[name], cpu):
            builds[name] = version
    return [str(version) for version in sorted(builds.values())]


def _preference(version: Version, cpu: bool) -> tuple[bool, bool]:
    return cpu and version.local != "cpu", version.local is not None


def _pip() -> list[str]:
    """This Python's pip, or one that uv fetches."""
    uv = find_uv()
    if find_spec("pip") is None and uv is not None:
        return [uv, "tool", "run", "pip"]
    return [sys.executable, "-m", "pip"]
