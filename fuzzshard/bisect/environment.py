"""An environment for each version of torch, made once and kept in a folder that the user can
name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from packaging.version import InvalidVersion, Version

from fuzzshard.corpus.lifecycle import release
from fuzzshard.errors import UsageError

READY = ".ready"
"""Written last: an environment without it was interrupted, and is made anew."""

_REASON_LENGTH = 300


class CannotInstall(Exception):
    """Why there is no environment for a version, in one line."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where packages come from, as pip's and uv's options of the same names. Whatever else these
    are to be told, they read from their own variables, such as ``PIP_CONSTRAINT``.
    """

    index_url: str = ""
    extra_index_url: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """Return the options by which pip and uv look into these indexes."""
        words = ["--index-url", self.index_url] if self.index_url else []
        return [*words, *(w for url in self.extra_index_url for w in ("--extra-index-url", url))]

    @property
    def key(self) -> str:
        """Tells environments of one version apart that were installed from other places."""
        python = ".".join(map(str, sys.version_info[:2]))
        return hashlib.sha256("\0".join([python, *self.arguments()]).encode()).hexdigest()[:8]


def environment(version: str, cache: Path, source: Source, *, others: Sequence[str] = ()) -> Path:
    """Return the Python of an environment with ``torch==version``; raises :class:`CannotInstall`.

    Uses uv where there is one, else venv and pip, which are slower and download more. ``others``
    are requirements of more packages, which come from PyPI in any case.
    """
    folder = cache / f"torch-{version}-{source.key}"
    python = folder / "bin" / "python"
    if (folder / READY).exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for command in _commands(folder, python, version, source, others):
            _run(command)
    except OSError as error:
        raise CannotInstall(f"{error.strerror}: {error.filename}") from None
    except CannotInstall:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (folder / READY).touch()
    return python


def find_uv() -> str | None:
    """Return uv, on the PATH or beside this Python."""
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def _commands(
    folder: Path, python: Path, version: str, source: Source, others: Sequence[str]
) -> list[list[str]]:
    """numpy goes along: torch warns at every start without it."""
    packages = [*source.arguments(), f"torch=={version}", "numpy"]
    made = [sys.executable, "-m", "venv", str(folder)]
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if uv := find_uv():
        made = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    return [made, [*install, *packages], *([[*install, *others]] if others else [])]


def _run(command: list[str]) -> None:
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if result.returncode:
        raise CannotInstall(_reason(result.stderr or result.stdout))


def _reason(output: str) -> str:
    """Return what an installer printed, as one line without the frames that uv draws."""
    lines = [
        re.sub(r"^\W*(?:error|cause)\W+|^\W+", "", line, flags=re.I)
        for line in output.splitlines()
    ]
    lines = [line for line in lines if line and not line.lower().startswith("warning")]
    text = " ".join(lines) or "the installer failed and did not say why"
    return text if len(text) <= _REASON_LENGTH else text[:_REASON_LENGTH].rstrip() + " ..."


CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def versions_of_torch(source: Source, *, cpu: bool) -> list[str]:
    """Return what the index of ``source`` has, oldest first: releases, and nightlies if any.

    Of several builds of one release, one for the CPU comes first where ``cpu``, and else the one
    without a name. Raises :class:`UsageError` where pip cannot say it.
    """
    ran = subprocess.run(
        [*_pip(), "index", "versions", "torch", "--pre", *source.arguments()],
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
