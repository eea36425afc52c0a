"""``fuzzshard corpus``: keeping a directory of entries in order."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fuzzshard import reproducer
from fuzzshard.bisect.bisect import parse_versions
from fuzzshard.commands.corpus_sets import complain, print_json, text_width
from fuzzshard.commands.worlds import CommandWorlds
from fuzzshard.contracts import installed_torch
from fuzzshard.corpus.causes import (
    by_cause,
    cause_lines,
)
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.lifecycle import in_order
from fuzzshard.corpus.listing import ANY, Asked, entry_lines, listed
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import entry_files
from fuzzshard.corpus.verify import Condition, Verified, run_script, verify_cause
from fuzzshard.corpus.verify import verify as verify_file
from fuzzshard.errors import (
    EXIT_CLEAN,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    UsageError,
)
from fuzzshard.mending.mend import mends_for
from fuzzshard.options import DEFAULT_CORPUS, Flag, Json, RankOptions, Text, Worlds
from fuzzshard.report.busy import busy
from fuzzshard.report.stages import counted
from fuzzshard.runner import Runner

Filters = Annotated[Asked, Parameter(name="*", negative=(), show_default=False)]


def list_(
    *paths: Path,
    asked: Filters = ANY,
    as_json: Json = False,
) -> int:
    """Print one line for each entry, the worst first.

    severity is silent (a result is wrong and nothing says so), hang,
    crash, leak, warning, layout (what is registered is wrong, and no
    value) or internal (only private state of torch is wrong). cause is the
    known bug behind the finding, by the name of its mend, and component
    the part of torch that has the bug. Long names are cut in the middle:
    fuzzshard show corpus/findings/*DIGEST finds an entry by its end, and
    --json has the full names.

    Options that filter take patterns with * and ?, and may be repeated; ""
    stands for entries that have none.

    For example:
      fuzzshard corpus list
      fuzzshard corpus list --severity silent --component fully_shard
      fuzzshard corpus list --cause "list_group*" --status open
      fuzzshard corpus list corpus/findings --json

    Parameters
    ----------
    paths
        Corpora, entries or case files; by default ./corpus.
    as_json
        Print one JSON object for each entry.
    """
    stored, broken = load(paths or (DEFAULT_CORPUS,))
    rows = [row for row, _ in listed(stored, asked)]
    if as_json:
        print_json(rows)
    elif stored and not rows:
        print(f"none of {counted(len(stored), 'entry', 'entries')} is like that")
    else:
        print(*entry_lines(rows, text_width()), sep="\n")
    return complain(broken)


def causes(
    *paths: Path,
    asked: Filters = ANY,
    torch: Text = "",
    as_json: Json = False,
) -> int:
    """Print the causes of findings, a line for each, the worst first.

    A cause is a known bug, by the name of its mend: explain finds it, and
    corpus mark --cause writes it into the entry. weight says what a
    maintainer would think of it: bug, exotic (wrong in a setup that few
    have) or limitation (known or arguable). Releases come from what
    replay --update and bisect wrote. Filters select entries, as in corpus
    list; causes without any are left out.

    For example:
      fuzzshard corpus causes corpus/findings --severity silent
      fuzzshard corpus causes corpus/findings --torch 2.13.0,2.15.0

    Parameters
    ----------
    paths
        Corpora or entries; by default ./corpus.
    torch
        Releases, separated by commas. Each gets a column: of the entries that were run under it,
        how many show their finding (2/3).
    as_json
        Print one JSON object for each cause.
    """
    releases = parse_versions(torch) if torch else []
    stored, broken = load(paths or (DEFAULT_CORPUS,))
    known = {v for item in stored for v in (*item.entry.bad_on, *item.entry.good_on)}
    if unknown := [release for release in releases if release not in known]:
        others = ", ".join(in_order(known))
        raise UsageError(
            f"no entry was run under torch {unknown[0]}",
            f"choose of {others}" if others else "run replay --update under it",
        )
    rows = by_cause([item for _, item in listed(stored, asked)])
    if as_json:
        print_json(rows)
    else:
        print(*cause_lines(rows, text_width(), releases), sep="\n")
    return complain(broken)


def verify(
    *paths: Path,
    run: Flag = False,
    causes: Flag = False,
    ranks: Annotated[RankOptions, Parameter(name="*")] = RankOptions(),
    worlds: Worlds = "auto",
) -> int:
    """Check that each entry can be read and that its script belongs to its case.

    With --causes, check instead that each entry names the right cause: it must
    fail on torch as it is and with all mends but its own, and pass with its
    mend alone and with all mends. Entries whose bug this torch does not have
    are left out.

    OK          nothing is wrong with the entry
    STALE       this version would write another script
    UNSCRIPTED  no script can show the finding; replay can
    MISSING     it has no script
    INVALID     a file cannot be read
    UNSHOWN     --run: the script does not show the finding, or a fixed one
                --causes: the case does not fail as recorded, or its mend
                does not make it pass
    UNNEEDED    --causes: the case also passes without its mend, so it
                belongs to another one
    NOT RUN     --causes: this torch or this machine cannot show it

    Exit code 2: something is INVALID or MISSING; 3: something is UNSHOWN or
    UNNEEDED; 0: neither.

    For example:
      fuzzshard corpus verify
      fuzzshard corpus verify corpus/findings --run
      fuzzshard corpus verify corpus/findings --causes

    Parameters
    ----------
    paths
        Corpora, entries or case files; by default ./corpus.
    run
        Also run the scripts, on as many ranks as they need.
    causes
        Check the causes, which runs the cases, in several worlds.
    """
    if causes and run:
        raise UsageError("--causes checks no scripts", "use --run in a command of its own")
    if causes:
        return _verify_causes(paths or (DEFAULT_CORPUS,), ranks, worlds)
    if worlds != "auto":
        raise UsageError("--worlds is for --causes", "add --causes or leave it out")
    seen = Counter[Condition]()
    files = entry_files(paths or (DEFAULT_CORPUS,))
    with busy("verifying", len(files)) as line:
        for file in line.each(files):
            line.now(f"verifying {shown_path(file).name}")
            verified = verify_file(file, reproducer.scripts)
            is_readable = verified.condition in (Condition.OK, Condition.STALE)
            if run and is_readable and verified.path.is_dir():
                ran = run_script(
                    file,
                    functools.partial(reproducer.check, preload=ranks.preload),
                    torch=installed_torch(),
                    device=ranks.kind,
                    num_ranks=ranks.most,
                )
                verified = ran if ran.condition is not Condition.OK or ran.message else verified
            seen[verified.condition] += 1
            print(_as_line(verified), flush=True)
    print(f"verified {seen.total()}: {_counts(seen) or 'no cases found'}")
    if seen[Condition.INVALID] or seen[Condition.MISSING]:
        return EXIT_USAGE
    return EXIT_INCONCLUSIVE if seen[Condition.UNSHOWN] else EXIT_CLEAN


def _verify_causes(paths: Sequence[Path], ranks: RankOptions, worlds: Worlds) -> int:
    stored, broken = load(paths)
    entries = [(shown_path(item.file), item.entry) for item in stored if item.entry.signature]
    torch, mends = installed_torch(), mends_for()
    seen, shown = Counter[Condition](), set[str]()
    here = CommandWorlds(ranks, worlds)

    def verify_one(world: Runner, path: Path, entry: CorpusEntry) -> Verified:
        return verify_cause(world, path, entry, ranks.kind, here.config.size, mends, torch)

    def tell(verified: Verified) -> None:
        seen[verified.condition] += 1
        if verified.condition is Condition.OK:
            shown.add(verified.cause)
        print(_as_line(verified), flush=True)

    left = here.tell_each("verifying the cause of", entries, verify_one, tell)
    said = f"{_counts(seen) or 'no findings'}; {counted(len(shown), 'cause')}"
    if left:
        said += f"; interrupted, {left} not verified"
    print(f"verified {seen.total()}: {said}")
    code = complain(broken)
    if left:
        return EXIT_INTERRUPTED
    wrong = seen[Condition.UNSHOWN] or seen[Condition.UNNEEDED]
    return code or (EXIT_INCONCLUSIVE if wrong else EXIT_CLEAN)


def _counts(seen: Counter[Condition]) -> str:
    return ", ".join(f"{seen[each]} {each}" for each in Condition if each in seen)


def _as_line(verified: Verified) -> str:
    message = " ".join(verified.message.split())
    words = (f"{verified.condition:<10}", str(verified.path), verified.cause, message)
    return "  ".join(filter(None, words)).rstrip()
