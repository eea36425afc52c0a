"""``fuzzshard bisect``: under which versions of torch is a finding there?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import CASE_FILE, only_case, saved_script
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE, UsageError

Several = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


def bisect(
    path: Path,
    /,
    *,
    torch: str,
    cache: Path | None = None,
    runs: Annotated[int | None, Parameter(show_default=False)] = None,
    again: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    index_url: Annotated[str, Parameter(show_default=False)] = "",
    extra_index_url: Several = (),
    find_links: Several = (),
    constraint: Several = (),
    python: Annotated[str, Parameter(show_default=False)] = "",
) -> int:
    """Run the script of an entry under several versions of torch.

    Every version gets an environment of its own, made by uv if there is one
    and by venv and pip if not, and kept for the next time. What a version says
    is written into the entry at once (bad_on, good_on; the newest one says whether
    it is open or fixed) and not asked again, so an interrupted bisection goes on
    where it stopped. A flaky finding that stays away proves nothing, and of that
    nothing is written.

    Exit code 1: some version shows the finding; 0: none does; 3: none could be judged.

    On Linux, PyPI has torch with CUDA (5 GB for each version); for the CPU:
      --index-url https://download.pytorch.org/whl/cpu

    For example:
      fuzzshard bisect corpus/findings/NAME --torch 2.9.1,2.10.0

    Parameters
    ----------
    path
        An entry.
    torch
        Versions, separated by commas; they are tried oldest first.
    cache
        Where the environments are. By default below the XDG cache folder.
    runs
        Runs that a version has to pass to be good. By default 1, and for a flaky finding as many
        as confirmed it.
    again
        Also run versions that the entry knows already.
    index_url
        The package index, in place of PyPI.
    extra_index_url
        Another index; repeat it for several.
    find_links
        A folder or page of wheels; repeat it for several.
    constraint
        A file of version constraints; repeat it for several.
    python
        The Python of the environments: a path or, with uv, a version. By default this one.
    """
    from fuzzshard.bisect.bisect import Result
    from fuzzshard.bisect.bisect import bisect as each_version
    from fuzzshard.bisect.environment import Source, default_cache, environment
    from fuzzshard.bisect.versions import parse_versions, summary
    from fuzzshard.report.busy import busy

    file = only_case(path)
    entry = read_entry(file)
    _check(file, entry)
    versions = parse_versions(torch)
    source = Source(index_url, extra_index_url, find_links, constraint, python)
    if runs is None:
        runs = entry.confirmed.runs if entry.flaky and entry.confirmed is not None else 1
    if runs < 1:
        raise UsageError(f"{runs} runs show nothing", "use --runs 1 or more")
    folder = (cache or default_cache()).absolute()
    print(f"{entry.signature}: environments in {folder}", flush=True)
    width = max(map(len, versions))
    found: dict[Result, list[str]] = {result: [] for result in Result}
    with busy("running the script", len(versions)) as line:

        def install(version: str) -> Path:
            line.now(f"installing torch {version}")
            python = environment(version, folder, source)
            line.now(f"running the script under torch {version}")
            return python

        tries = each_version(file.parent, entry, versions, install, runs=runs, again=again)
        for tried in line.each(tries):
            found[tried.result].append(tried.version)
            taken = "" if tried.known else f"{tried.seconds:.0f} s"
            notes = ", ".join(filter(None, (tried.detail, taken)))
            print(f"torch {tried.version:{width}}  {tried.result:14}  {notes}", flush=True)
    print(summary(found[Result.BAD], found[Result.GOOD]))
    if found[Result.BAD]:
        return EXIT_FINDING
    return EXIT_CLEAN if found[Result.GOOD] else EXIT_INCONCLUSIVE


def _check(file: Path, entry: CorpusEntry) -> None:
    """Raises :class:`UsageError` for what no other torch can say anything about."""
    if file.name != CASE_FILE or not entry.signature:
        raise UsageError(f"{file} is no finding of a corpus", "give an entry's folder")
    if saved_script(file) is None:
        raise UsageError(
            f"{file.parent} has no script to run", "replay it under the other version instead"
        )
    if entry.preload:
        raise UsageError(
            f"the finding was made with {', '.join(entry.preload)} preloaded",
            "bisect findings of torch only",
        )
