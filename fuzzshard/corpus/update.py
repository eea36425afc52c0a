"""What ``replay --update`` writes: what a replay has seen, into the entry it has seen it of."""

from __future__ import annotations

from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import is_there, known_versions, with_finding, with_observation
from fuzzshard.corpus.outcome import Outcome
from fuzzshard.corpus.replay import ReplayResult
from fuzzshard.corpus.scripts import ScriptRender, script_of
from fuzzshard.corpus.store import CASE_FILE, save_shrunk


def update(result: ReplayResult, device: str, render: ScriptRender) -> str:
    """Writes what ``result`` has seen into its entry; a few words of what became of it, empty for
    no change.

    A bare case, and an entry without a recorded finding, are expected to pass and stay so. Files
    are replaced whole. Raises :class:`fuzzshard.errors.InfraError` for a disk that is full or
    read-only.
    """
    if result.verdict is None or not result.path.is_dir():
        return ""
    file = result.path / CASE_FILE
    entry = read_entry(file)
    if not entry.signature or entry.device not in ("", device):
        return ""
    after = _after(entry, result, device)
    if after == entry:
        return ""
    if after.signature != entry.signature:
        save_shrunk(result.path, after, script_of(after, render))
        return f"now {after.signature}"
    write_atomic(file, encode_entry(after))
    return f"{after.lifecycle}, {known_versions(after)}"


def _after(entry: CorpusEntry, result: ReplayResult, device: str) -> CorpusEntry:
    verdict = result.verdict
    assert verdict is not None
    match result.outcome:
        case Outcome.CHANGED if not is_there(entry, verdict, result.torch):
            return with_finding(entry, verdict, result.torch, device)
        case Outcome.SAME | Outcome.WONTFIX | Outcome.CHANGED:
            return with_observation(entry, result.torch, present=True)
        case Outcome.FIXED | Outcome.PASS:
            return with_observation(entry, result.torch, present=False)
    return entry
