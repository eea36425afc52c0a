"""``fuzzshard corpus``: keeping a directory of entries in order."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from fuzzshard.bisect.versions import parse_versions
from fuzzshard.case.order import leaf_count
from fuzzshard.commands.corpus_mark import mark
from fuzzshard.commands.corpus_sets import Flag, add, complain, merge, prune
from fuzzshard.commands.options import DEFAULT_CORPUS, Device, Json, RanksPerDevice, world_config
from fuzzshard.corpus.causes import by_cause, causes_table, releases_table
from fuzzshard.corpus.distinct import Stored
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.outcome import by_size, most_ranks
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import entry_files
from fuzzshard.corpus.verify import Condition, Verified
from fuzzshard.corpus.verify import run_script as run_script_of
from fuzzshard.corpus.verify import verify as verify_file
from fuzzshard.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE, EXIT_USAGE, UsageError
from fuzzshard.mending.mend import mends_for

if TYPE_CHECKING:
    from fuzzshard.corpus.verify_causes import CauseVerified

HELP = """\
Lists, adds, prunes, verifies and merges saved cases.
"""


def list_(*paths: Path, as_json: Json = False) -> int:
    """Print one line for each entry.

    Modules and ops say how large the case is; rate is how many of the confirming runs showed the
    finding. Findings that only an instrument sees, and no user, are of class internal and come
    last.

    For example:
      fuzzshard corpus list
      fuzzshard corpus list corpus/findings --json

    Parameters
    ----------
    paths
        Corpora, entries or case files; by default ./corpus.
    as_json
        Print one JSON object for each entry.
    """
    stored, broken = load(paths or (DEFAULT_CORPUS,))
    rows = [_row(item) for item in sorted(stored, key=lambda item: item.entry.internal)]
    if as_json:
        print(
            *(msgspec.json.encode(row).decode() for row in rows),
            sep="\n",
            end="\n" if rows else "",
        )
    else:
        print(*_table(rows), sep="\n")
    return complain(broken)


def causes(
    *paths: Path, torch: Annotated[str, Parameter(show_default=False)] = "", as_json: Json = False
) -> int:
    """Print the distinct findings of corpora as a table in Markdown, a row for each root cause.

    A root is the mend that an entry names as its cause: explain finds it, and corpus mark writes
    it down. The releases are what replay --update and bisect have written into the entries.

    For example:
      fuzzshard corpus causes corpus/findings > corpus/findings/FINDINGS.md
      fuzzshard corpus causes corpus/findings --torch 2.13.0,2.15.0

    Parameters
    ----------
    paths
        Corpora or entries; by default ./corpus.
    torch
        Releases, separated by commas: print how many entries of each cause have their finding
        there.
    as_json
        Print one JSON object for each cause.
    """
    corpora = paths or (DEFAULT_CORPUS,)
    stored, broken = load(corpora)
    rows = by_cause(stored)
    if as_json:
        print(
            *(msgspec.json.encode(row).decode() for row in rows),
            sep="\n",
            end="\n" if rows else "",
        )
    else:
        page = releases_table(rows, corpora[0], parse_versions(torch)) if torch else None
        print(page or causes_table(rows, corpora[0]), end="")
    return complain(broken)


def verify(
    *paths: Path,
    run: Flag = False,
    causes: Flag = False,
    device: Device = "auto",
    ranks_per_device: RanksPerDevice = 1,
    as_json: Json = False,
) -> int:
    """Check that each entry can be read and that its script is the one that its case stands for.

    With --causes, check instead that entries have the cause that they name: each that this torch
    has fails on torch as it is, and passes with exactly its mend (or trips it), and with all
    mends.

    OK          the entry is whole
    STALE       its script is not the one that this version writes
    UNSCRIPTED  no script can show it; replaying does
    MISSING     it has no script
    INVALID     a file cannot be read
    UNSHOWN     with --run: the script does not show the finding, or shows one that is fixed;
                with --causes: the case does not fail as recorded, or its mend does not cure it
    NOT RUN     with --causes: this torch or this machine has nothing to show

    Exit code 0: nothing is INVALID, MISSING or UNSHOWN; 2: something is INVALID or MISSING; 3:
    UNSHOWN.

    For example:
      fuzzshard corpus verify
      fuzzshard corpus verify corpus/findings --run
      fuzzshard corpus verify corpus/findings --causes

    Parameters
    ----------
    paths
        Corpora, entries or case files; by default ./corpus.
    run
        Run the scripts too, on the ranks that they need.
    causes
        Check causes, on ranks.
    device
        With --run or --causes: auto is CUDA with NCCL where there is any, else the CPU with gloo.
    ranks_per_device
        With --causes: how many ranks may share a CUDA device, for meshes larger than the node:
        slower by far.
    as_json
        With --causes: print one JSON object for each entry.
    """
    if causes and run:
        raise UsageError("--causes checks no scripts", "use --run in a command of its own")
    if as_json and not causes:
        raise UsageError("--json is for --causes", "add --causes or leave it out")
    if causes:
        return _verify_causes(
            paths or (DEFAULT_CORPUS,), device, ranks_per_device, as_json=as_json
        )
    if ranks_per_device != 1:
        raise UsageError("--ranks-per-device is for --causes", "add --causes or leave it out")
    from fuzzshard import reproducer
    from fuzzshard.report.busy import busy
    from fuzzshard.world import resolve_device

    kind, num_devices = resolve_device(device)
    num_ranks = most_ranks(kind, num_devices)
    torch = importlib.metadata.version("torch")
    run_one = functools.partial(
        run_script_of, check=reproducer.check, torch=torch, device=kind, num_ranks=num_ranks
    )
    seen: list[Condition] = []
    files = entry_files(paths or (DEFAULT_CORPUS,))
    with busy("verifying", len(files)) as line:
        for file in line.each(files):
            line.now(f"verifying {shown_path(file).name}")
            verified = verify_file(file, reproducer.scripts)
            if (
                run
                and verified.condition in (Condition.OK, Condition.STALE)
                and verified.path.is_dir()
            ):
                ran = run_one(file)
                verified = ran if ran.condition is not Condition.OK or ran.message else verified
            seen.append(verified.condition)
            print(_as_line(verified), flush=True)
    counts = ", ".join(
        f"{seen.count(condition)} {condition}" for condition in Condition if condition in seen
    )
    print(f"verified {len(seen)}: {counts or 'no cases found'}")
    if set(seen) & {Condition.INVALID, Condition.MISSING}:
        return EXIT_USAGE
    return EXIT_INCONCLUSIVE if Condition.UNSHOWN in seen else EXIT_CLEAN


def _verify_causes(
    paths: Sequence[Path], device: Device, ranks_per_device: int, *, as_json: bool
) -> int:
    from fuzzshard.corpus.verify_causes import verify_cause
    from fuzzshard.report.busy import busy
    from fuzzshard.world import World, resolve_device

    kind, num_devices = resolve_device(device)
    stored, broken = load(paths)
    entries = [(shown_path(item.file), item.entry) for item in stored if item.entry.signature]
    num_ranks = most_ranks(kind, num_devices, ranks_per_device)
    seen, roots, mends = Counter[Condition](), set[str](), mends_for()
    with busy("verifying causes", len(entries)) as line:
        for size, of_size in by_size(entries, kind, num_ranks):
            config = world_config(
                kind, num_devices, (), asked=size, default=size, ranks_per_device=ranks_per_device
            )
            with World(config) as world:
                world.start()
                for path, entry in line.each(of_size):
                    line.now(f"verifying the cause of {path.name}")
                    verified = verify_cause(world, path, entry, kind, size, mends)
                    seen[verified.condition] += 1
                    if verified.condition is Condition.OK:
                        roots.add(verified.cause)
                    print(_cause_line(verified, as_json=as_json), flush=True)
    if not as_json:
        counts = ", ".join(f"{count} {condition}" for condition, count in seen.items())
        print(
            f"verified {sum(seen.values())}: {counts or 'no findings found'}; {len(roots)} root "
            "causes"
        )
    code = complain(broken)
    return code or (EXIT_INCONCLUSIVE if seen[Condition.UNSHOWN] else EXIT_CLEAN)


def _cause_line(verified: CauseVerified, *, as_json: bool) -> str:
    if as_json:
        row = {**dataclasses.asdict(verified), "path": str(verified.path)}
        return msgspec.json.encode(row).decode()
    words = (f"{verified.condition:<7}", str(verified.path), verified.cause, verified.message)
    return "  ".join(words).rstrip()


def corpus_app(sort_key: int) -> App:
    """The group of commands."""
    app = App(
        name="corpus",
        sort_key=sort_key,
        help=HELP,
        help_epilogue="",
        help_format="plaintext",
        version_flags=(),
    )
    commands: tuple[Callable[..., int], ...] = (list_, causes, add, prune, verify, merge, mark)
    for order, command in enumerate(commands):
        app.command(command, name=command.__name__.rstrip("_"), help_epilogue="", sort_key=order)
    return app


def _row(item: Stored) -> dict[str, str | int]:
    entry, confirmed = item.entry, item.entry.confirmed
    return {
        "path": str(shown_path(item.file)),
        "signature": entry.signature,
        "lifecycle": f"{entry.lifecycle or ''}{', unshrunk' if entry.unshrunk else ''}",
        "class": "internal" if entry.internal else "",
        "modules": leaf_count(entry.case),
        "ops": len(entry.case.schedule),
        "mesh": entry.mesh,
        "torch": entry.torch,
        "rate": f"{confirmed.reproduced}/{confirmed.runs}" if confirmed else "",
        "issue": entry.issue,
    }


def _table(rows: Sequence[dict[str, str | int]]) -> list[str]:
    """Columns as wide as they must be; numbers are few and stand left like the rest."""
    if not rows:
        return ["no cases found"]
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _as_line(verified: Verified) -> str:
    return (
        f"{verified.condition:<10}  {verified.path}  {' '.join(verified.message.split())}".rstrip()
    )
