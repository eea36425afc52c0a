"""What tells one case from another, in a maintainer's words: "with reshard_after_forward=True in
place of 2".

Phrases complete the sentence "it works ...". Both cases are those of one reduction or one edit, so
what did not change has the same name in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fuzzshard.case.case import Case, Freeze, Inputs, Mesh, WrapGroup
from fuzzshard.case.dims import get_dims
from fuzzshard.case.graph import Alias, Block, Module, walk
from fuzzshard.case.phrases import fields, in_place_of, named, value_words
from fuzzshard.parts.engines import OPTIONS, specs
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.op import Op

_SAID_ELSEWHERE = frozenset(
    (
        "seed",
        "model",
        "inputs",
        "mesh",
        "schedule",
        "wrap",
        "freezes",
        "optimizer",
        *OPTIONS,
        "ties",
    )
)


def describe(old: Case, new: Case) -> list[str]:
    """Return every difference of ``new`` from ``old``, one phrase each; empty for cases that are
    equal.
    """
    phrases = [
        *_mesh(old.mesh, new.mesh),
        *_wraps(old.wrap, new.wrap),
        *describe_schedule(
            old.schedule, new.schedule, no_sync=all(s.wrapper for s in specs(old.engines))
        ),
        *_freezes(old.freezes, new.freezes),
        *fields(old.optimizer, new.optimizer, "", skip=("kind",)),
        *(p for name in OPTIONS for p in fields(getattr(old, name), getattr(new, name), "")),
        *_scalars(old, new),
        *_model(old, new),
        *_inputs(old, new),
    ]
    if old.optimizer.kind != new.optimizer.kind:
        phrases.append(f"with {new.optimizer.kind} in place of {old.optimizer.kind}")
    if old.seed != new.seed:
        phrases.append(in_place_of("seed", new.seed, old.seed))
    return phrases


def _mesh(old: Mesh, new: Mesh) -> Iterator[str]:
    if old.size != new.size:
        ranks = f"with {new.size} rank{'s' * (new.size > 1)} in place of {old.size}"
        one_axis = Mesh(shard=old.size) == old and Mesh(shard=new.size) == new
        yield ranks if one_axis else f"{ranks} (mesh {new.text()}, was {old.text()})"
    elif old != new:
        yield f"on the mesh {new.text()} in place of {old.text()}"


def _wraps(old: Sequence[WrapGroup], new: Sequence[WrapGroup]) -> Iterator[str]:
    """Groups are the same where they have the same modules; others came, went, or changed their
    modules.
    """
    before, after = {g.modules: g for g in old}, {g.modules: g for g in new}
    gone, came = [m for m in before if m not in after], [m for m in after if m not in before]
    for modules in (m for m in before if m in after):
        where = f" on {', '.join(map(named, modules))}" if len(old) > 1 else ""
        yield from fields(before[modules], after[modules], where, skip=("modules",))
    if gone and came:
        yield f"with {_calls(came)} in place of {_calls(gone)}"
    elif gone or came:
        yield f"without {_calls(gone)}" if gone else f"with {_calls(came)} as well"
    elif list(before) != list(after):
        yield "with the fully_shard calls in another order"


def _calls(groups: Sequence[tuple[str, ...]]) -> str:
    listed = [
        "model" if m == ("",) else m[0] if len(m) == 1 else f"[{', '.join(m)}]" for m in groups
    ]
    return " and ".join(f"fully_shard({modules})" for modules in listed)


def _freezes(old: Sequence[Freeze], new: Sequence[Freeze]) -> Iterator[str]:
    before, after = {f.target: f for f in old}, {f.target: f for f in new}
    for target, freeze in before.items():
        if target not in after:
            yield f"without freezing {named(target)}"
        elif freeze != after[target]:
            when = "after" if after[target].after_wrap else "before"
            yield f"with {named(target)} frozen {when} wrapping"
    yield from (f"with {named(target)} frozen" for target in after if target not in before)


def _scalars(old: Case, new: Case) -> Iterator[str]:
    """Yield what a case has once, and lists of which items went or came."""
    for name in Case.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if name in _SAID_ELSEWHERE or before == after:
            continue
        if not isinstance(before, tuple):
            yield in_place_of(name, after, before)
            continue
        label = name.replace("_", " ").removesuffix("s")
        yield from (
            f"without the {label} {value_words(item)}" for item in before if item not in after
        )
        yield from (
            f"with the {label} {value_words(item)}" for item in after if item not in before
        )
    yield from (
        f"without tying {t.parameter} to {t.source}" for t in old.ties if t not in new.ties
    )
    yield from (f"with {t.parameter} tied to {t.source}" for t in new.ties if t not in old.ties)


def _rank_batches(old: Inputs, new: Inputs) -> Iterator[str]:
    """Ranks whose batches are of another size than before; all of them as they usually are is one
    change.
    """
    before, after = (
        {(i.rank, i.batch): i.rows for i in inputs.rank_batches} for inputs in (old, new)
    )
    if before and not after:
        yield "with batches of one size"
        return
    for rank, batch in dict.fromkeys((*before, *after)):
        was, now = before.get((rank, batch)), after.get((rank, batch))
        where = f"on rank {rank}" + (f" in batch {batch}" if batch is not None else "")
        if now is None:
            yield f"with the usual number of rows {where}"
        elif now != was:
            in_place = f" in place of {was}" if was is not None else ""
            yield f"with {now or 'no'} row{'s' * (now != 1)} {where}{in_place}"


def _inputs(old: Case, new: Case) -> Iterator[str]:
    yield from fields(old.inputs, new.inputs, "", skip=("tensors", "rank_batches"))
    yield from _rank_batches(old.inputs, new.inputs)
    before, after = old.inputs.tensors, new.inputs.tensors
    if len(before) != len(after):
        yield f"with {len(after)} inputs in place of {len(before)}"
        return
    for index, (a, b) in enumerate(zip(before, after, strict=True)):
        yield from fields(a, b, f" of input {index}", skip=("size",))
    if get_dims(old) == get_dims(new):
        return
    sizes = [(a.size, b.size) for a, b in zip(before, after, strict=True) if a.size != b.size]
    yield from (f"with {b} features of an input in place of {a}" for a, b in sizes)


def _model(old: Case, new: Case) -> Iterator[str]:
    """Modules that went, came or are others; then how they are called."""
    before, after = dict(walk(old.model)), dict(walk(new.model))
    gone, came = [p for p in before if p not in after], [p for p in after if p not in before]
    yield from (f"without {_what(before[path])} {path}" for path in gone)
    yield from (f"with {_what(after[path], article=True)} {path} more" for path in came)
    for path in (p for p in before if p in after):
        yield from _module(path, before[path], after[path])
    rewired = [
        path for path in before if path in after and _flow(before[path]) != _flow(after[path])
    ]
    if rewired and not gone and not came:
        yield f"with another forward of {' and '.join(map(named, rewired))}"


def _module(path: str, old: Module, new: Module) -> Iterator[str]:
    if isinstance(old, Block) and isinstance(new, Block):
        yield from fields(
            old, new, f" of {named(path)}", skip=("children", "nodes", "outputs", "inputs")
        )
    elif type(old) is not type(new):
        yield f"with {path} {_what(new, article=True)} in place of {_what(old, article=True)}"
    elif not isinstance(old, Alias):
        yield from fields(old, new, f" of {path}")


def _what(module: Module, *, article: bool = False) -> str:
    name = (
        module.noun
        if isinstance(module, Leaf)
        else "block"
        if isinstance(module, Block)
        else "second name"
    )
    vowel = name[0] in "aeiouAEIOU" or name in ("MLP", "RMSNorm")
    return f"{'an' if vowel else 'a'} {name}" if article else f"the {name}"


def _flow(module: Module) -> tuple[object, ...]:
    return (module.nodes, module.outputs, module.inputs) if isinstance(module, Block) else ()


_NO_SYNC = "no_sync()"


def describe_schedule(old: Sequence[Op], new: Sequence[Op], *, no_sync: bool) -> Iterator[str]:
    """Yield ops that changed in place, or how many there are now of those that went or came.

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
