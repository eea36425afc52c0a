"""What tells one schedule from another, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fuzzshard.case.phrases import fields
from fuzzshard.parts.op import Op

_NO_SYNC = "no_sync()"


def describe_schedule(old: Sequence[Op], new: Sequence[Op], *, no_sync: bool) -> Iterator[str]:
    """Ops that changed in place, or how many there are now of those that went or came.

    With ``no_sync`` engines have a context manager in place of flags.
    """

    def op_words(op: Op) -> str:
        return op.noun(no_sync=no_sync)

    if len(old) == len(new):
        changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        if len(changed) > 1 and Counter(old) == Counter(new):
            yield "with the ops in another order"
            return
        for a, b in changed:
            if type(a) is type(b) and op_words(a) == op_words(b):
                yield from fields(a, b, f" in {op_words(a)}")
            else:
                yield f"with {op_words(b)} in place of {op_words(a)}"
        return
    before, after = Counter(map(op_words, old)), Counter(map(op_words, new))
    if no_sync and not any(words.endswith(_NO_SYNC) for words in after):
        gone = [words for words in before if words.endswith(_NO_SYNC)]
        if gone:
            yield "without no_sync()"
        for words in gone:
            del before[words]
    for words in before | after:
        was, now = before[words], after[words]
        if now < was:
            yield f"without {words}" if not now else f"with {now} {words} in place of {was}"
        elif now > was:
            yield f"with {words}" if not was else f"with {now} {words} in place of {was}"
