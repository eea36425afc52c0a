"""``fuzzshard corpus mark`` and ``merge``: what changes a corpus."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fuzzshard.corpus.codec import encode_entry
from fuzzshard.corpus.entry import CONTRACT, LOOKED_UP
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.gather import merge as merge_entries
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.replay import shown_path
from fuzzshard.errors import EXIT_CLEAN, EXIT_USAGE, FuzzshardError, UsageError
from fuzzshard.mending.mend import own_mends
from fuzzshard.options import Folder, given
from fuzzshard.report.show import WIDTH


def merge(*sources: Path, into: Folder) -> int:
    """Join corpora in one: of each signature and set of features the smallest case is kept.

    Confirmed entries are preferred to unconfirmed ones, and stable findings to
    flaky ones. Where a smaller case replaces a finding of the corpus, what people wrote
    into it (the issue, wontfix) is kept. The sources stay as they are. To see
    several campaigns together, give their folders to status and to html.

    For example:
      fuzzshard merge /data/node1 /data/node2 --into corpus

    Parameters
    ----------
    sources
        Campaigns, corpora, entries or case files to take from.
    into
        The corpus to add to; it is created where there is none.
    """
    from fuzzshard import reproducer

    incoming, broken = load(given(sources, "merge", "a corpus"), follow=False)
    target, broken_here = load([into]) if into.exists() else ([], [])
    ours = {item.file.resolve() for item in target}
    incoming = [item for item in incoming if item.file.resolve() not in ours]
    done: list[str] = []
    for what, path in merge_entries(incoming, target, into, reproducer.scripts):
        done.append(what)
        if what != "known":
            print(f"{what:<8}  {shown_path(path)}")
    words = ("added", "replaced", "updated", "known")
    print(f"merged {len(incoming)}: {', '.join(f'{done.count(w)} {w}' for w in words)}")
    return complain([*broken, *broken_here])


def complain(broken: Iterable[FuzzshardError]) -> int:
    """Prints what cannot be read, a line each; the exit code that follows."""
    code = EXIT_CLEAN
    for error in broken:
        print(f"INVALID   {error}")
        code = EXIT_USAGE
    return code


def text_width() -> int:
    """Return the columns of the terminal; of what is none, those of all texts."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def print_json(rows: Iterable[object]) -> None:
    """Print one JSON object for each row, a line each."""
    for row in rows:
        print(msgspec.json.encode(row).decode())


def mark(
    *paths: Path,
    lifecycle: Lifecycle | None = None,
    issue: str | None = None,
    contract: str | None = None,
    looked_up: str | None = None,
    cause: str | None = None,
) -> int:
    """Write into entries what you know about their finding.

    For example:
      fuzzshard corpus mark corpus/findings/NAME --lifecycle wontfix
      fuzzshard corpus mark corpus/findings/NAME
        --issue https://github.com/pytorch/pytorch/issues/1

    Parameters
    ----------
    paths
        Entries with a finding.
    lifecycle
        wontfix, flaky, or back to open or fixed, which replay --update sets by itself.
    issue
        The URL of the issue. Empty removes it.
    contract
        The sentence of the documentation that the finding breaks, for fuzzshard report. Empty
        removes it.
    looked_up
        When and how you searched for an issue, and what came near. Empty removes it.
    cause
        The name of the mend that is its cause, as explain prints it. Empty removes it.
    """
    if lifecycle is issue is contract is looked_up is cause is None:
        raise UsageError(
            "there is nothing to write",
            "give --lifecycle, --issue, --contract, --looked-up or --cause",
        )
    if cause and cause not in own_mends():
        raise UsageError(f"there is no mend {cause}", "see fuzzshard explain")
    if issue and not issue.startswith(("https://", "http://")):
        raise UsageError(f"{issue} is no address", "write https://...")
    stored, broken = load(given(paths, "mark", "an entry"))
    for item in stored:
        if not item.entry.signature:
            raise UsageError(
                f"{shown_path(item.file)} records no finding", "mark entries of findings"
            )
        after = msgspec.structs.replace(
            item.entry,
            lifecycle=lifecycle or item.entry.lifecycle,
            issue=item.entry.issue if issue is None else issue,
            cause=item.entry.cause if cause is None else cause,
            notes=_with_note(
                _with_note(item.entry.notes, CONTRACT, contract), LOOKED_UP, looked_up
            ),
        )
        write_atomic(item.file, encode_entry(after))
        print(f"{after.lifecycle}  {shown_path(item.file)}  {after.issue}".rstrip())
    return complain(broken)


def _with_note(notes: dict[str, str], name: str, text: str | None) -> dict[str, str]:
    if text is None:
        return notes
    others = {key: note for key, note in notes.items() if key != name}
    return {**others, name: text} if text else others
