"""``fuzzshard corpus mark``: what people know of a finding, written into its entry."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzzshard.commands.corpus_sets import complain, given
from fuzzshard.corpus.codec import encode_entry
from fuzzshard.corpus.entry import CONTRACT, LOOKED_UP
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.replay import shown_path
from fuzzshard.errors import UsageError
from fuzzshard.mending.mend import own_mends


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
