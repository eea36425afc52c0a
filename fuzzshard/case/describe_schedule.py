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
    words = {op: op.noun(no_sync=no_sync) for op in (*old, *new)}
    if len(old) == len(new):
        changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        if len(changed) > 1 and Counter(old) == Counter(new):
            yield "with the ops in another order"
            return
        for a, b in changed:
            if type(a) is type(b) and words[a] == words[b]:
                yield from fields(a, b, f" in {words[a]}")
            else:
                yield f"with {words[b]} in place of {words[a]}"
        return
    before, after = Counter(words[op] for op in old), Counter(words[op] for op in new)
    if no_sync and not any(noun.endswith(_NO_SYNC) for noun in after):
        gone = [noun for noun in before if noun.endswith(_NO_SYNC)]
        if gone:
            yield "without no_sync()"
        for noun in gone:
            del before[noun]
    for noun in before | after:
        was, now = before[noun], after[noun]
        if now < was:
            yield f"without {noun}" if not now else f"with {now} {noun} in place of {was}"
        elif now > was:
            yield f"with {noun}" if not was else f"with {now} {noun} in place of {was}"
