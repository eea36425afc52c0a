"""The script of an entry, reduced: what it does without is taken away, and it still fails for the
same reason.

A script fails for the reason of another one if it raises the same error at the same place of
torch, fails the same assertion, or its ranks wait in the same collectives, and if it passes where
the other one passes: with the mend of the cause, or with a change of the case that helps.
"""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.scripts import ScriptCheck, shown_by
from fuzzshard.drafts.evidence import as_code
from fuzzshard.mending.mend import own_mends
from fuzzshard.mending.source import why_not
from fuzzshard.reproducer.check import check, ranks_needed
from fuzzshard.reproducer.forked import ForkedRanks, ScriptRun
from fuzzshard.reproducer.header import of_what_is_there
from fuzzshard.reproducer.reduce import patched, reduced
from fuzzshard.reproducer.shown import Shown
from fuzzshard.temporary import TemporaryFolder
from fuzzshard.verdict import Status

SECONDS = 300.0
"""How long reducing a script takes at most."""

_LIMIT = re.compile(r"(?<=timedelta\(seconds=)\d+")
_HANG_SECONDS = "3"
"""How long ranks wait for each other in a step, which costs as much. Scripts wait ten times as
long, as nobody knows how slow their reader's machine is."""

_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n(.*?)\n(\w[\w.]*)(?:: (.*?))?"
    r"(?=\n(?:\[rank\d+\]: ?)?Traceback|\n\n(?:During|The above)|\s*\Z)",
    re.DOTALL,
)
_FRAME = re.compile(r'  File "(?:.*/)?(.*?)", line \d+, in (\S+)')

_TRAINING = re.compile(
    r"\b(model|ddp|fsdp)\(|\.(backward|step|eval|requires_grad_|zero_grad|save|load|clip_\w+"
    r"|\w*shard|set_(?!device)\w+|load_\w+)\(|\b([gs]et_\w*state_dict)\(|(\"\w+\"): "
)
"""Calls that train or change what training does, and the items of states that are saved."""


def reduced_script(
    entry: CorpusEntry,
    script: str,
    *,
    preload: tuple[Path, ...] = (),
    check: ScriptCheck = check,
    wanted: Callable[[], bool] = lambda: True,
    now: Callable[[str], None] = lambda _: None,
    seconds: float = SECONDS,
) -> str:
    """Return ``script`` without what its finding does not need, as far as it came in time.

    ``script`` itself where nothing tells apart why scripts of ``entry`` fail: where ranks hang or
    a tensor is wrong, and nothing is known that makes it right. ``now`` is told how far it is.
    What comes of it is run by ``check`` as well, unless it is ``wanted`` no more.
    """
    until = time.monotonic() + seconds
    with TemporaryFolder() as folder, ForkedRanks(folder) as ranks:
        same = _SameReason(
            entry, script, functools.partial(ranks, preload=preload, abrupt=True, wanted=wanted)
        )
        if not same.is_known:
            return script

        def shows(text: str) -> bool:
            lines = len(same.script.splitlines())
            now(f"reducing the script: {lines} lines after {same.runs} runs")
            return same(text)

        try:
            text = reduced(script, shows, wanted=lambda: wanted() and time.monotonic() < until)
        except KeyboardInterrupt:
            text = same.script
        if same.script == script:
            return script
        text = of_what_is_there(text)
        if wanted():
            now("running the reduced script")
            ranks.path.write_text(text)
            ran = check(ranks.path, ranks_needed(text), preload=preload)
            return text if shown_by(ran, entry) is Shown.YES else script
        return text


class _SameReason:
    """Whether a text fails as ``script`` does, which is the last one that did."""

    def __init__(self, entry: CorpusEntry, script: str, ranks: Callable[..., ScriptRun]) -> None:
        self.entry, self.script, self._ranks = entry, script, ranks
        self.runs, self._seconds = 0, 120.0
        self._mends: tuple[str, ...] = ()
        self._right: str | None = None
        """What ``script`` becomes by a change that helps."""
        began = time.monotonic()
        self._reasons = self._why(script)
        self._seconds = 10 + 5 * (time.monotonic() - began)
        mend = own_mends().get(entry.cause)
        if self._reasons and mend is not None and mend.kind == "mend" and not why_not(mend):
            self._mends = (mend.slug,) if self._passes(script, (mend.slug,)) else ()
        if self._reasons and not self._mends:
            changed = (change.script for change in as_code(entry, script))
            self._right = next((text for text in changed if self._passes(text)), None)
        asserts = "" in {place for place, *_ in self._reasons} and "reference" not in script
        self._training = _calls(script) if asserts or not self._has_right else None
        """What stays, where only the program says what is due."""

    @property
    def is_known(self) -> bool:
        """Whether a text can be told from one that fails for another reason."""
        return bool(self._reasons) and (self._has_right or self.entry.status is Status.CRASH)

    @property
    def _has_right(self) -> bool:
        return bool(self._mends) or self._right is not None

    def __call__(self, text: str) -> bool:
        if self._training is not None and _calls(text) != self._training:
            return False
        if self._reasons.isdisjoint(self._why(text)):
            return False
        right = self._right
        if right is not None:
            right = patched(self.script, text, right, wholly=False)
            assert right is not None
        if self._has_right and not self._passes(right or text, self._mends):
            return False
        self.script, self._right = text, right
        return True

    def _why(self, text: str) -> set[tuple[str, ...]]:
        """Return why a script fails as the entry says; nothing if it does not."""
        run = self._run(text)
        if shown_by(run, self.entry) is not Shown.YES:
            return set()
        died = ("", str(next(filter(None, run.codes), None)), "")
        found = set(reasons(run.output)) or {died}
        if self.entry.status is not Status.HANG:
            return found
        return {tuple(sorted({place for place, *_ in found}))}  # whose time is up first is chance

    def _passes(self, text: str, mends: tuple[str, ...] = ()) -> bool:
        return not self._run(text, mends).fails

    def _run(self, text: str, mends: tuple[str, ...] = ()) -> ScriptRun:
        self.runs += 1
        if self.entry.status is Status.HANG:
            text = _LIMIT.sub(_HANG_SECONDS, text)
        return self._ranks(text, ranks_needed(text), mends=mends, seconds=self._seconds)


def _calls(text: str) -> Counter[str]:
    """Count what a script does for which something is due."""
    return Counter("forward" if name[0] else "".join(name) for name in _TRAINING.findall(text))


def reasons(output: str) -> Iterator[tuple[str, ...]]:
    """Return where errors were raised, their classes and their words: what stays the same for
    other values, names of layers and numbers of ranks.
    """
    for frames, error, message in _TRACEBACK.findall(output):
        for file, function in _FRAME.findall(frames)[-1:]:
            place = "" if file == "repro.py" else f"{file} {function}"
            yield place, error, _words(message)


def _words(message: str) -> str:
    """Return a message without values."""
    text = re.sub(r"\brank \d+[:,] ", "", message)
    text = re.sub(
        r"tensor\([^()]*\)",
        lambda found: "tensor" + " nan" * ("nan" in found[0]) + " inf" * ("inf" in found[0]),
        text,
    )
    text = text.partition("\n\n")[0].replace("Scalars", "Tensor-likes")
    text = re.sub(r"[\w.]*\.([a-z_]\w*)", r"\1", text)
    return " ".join(re.findall(r"[^\W\d]\w*", text))
