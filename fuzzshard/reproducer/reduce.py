"""A script without what it does not need: statements, arguments, functions, processes.

This is delta debugging of the printed text (Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input", 2002). Every pass offers texts that are a little simpler, found by the
syntax tree and cut out of the text, so that comments and layout stay. A text is taken if it still
shows what the script is for; whoever calls this says so by running it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import difflib
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from fuzzshard.program.imports import import_block, importable

_KEPT = re.compile(
    r"dist\.destroy_process_group\(\)|torch\.manual_seed\((?:\d+|seed)\)"
    r"|getattr\(module, init\)\(\)|getattr\(nn\.init, init, nn\.init\.normal_\)"
)
"""What stays: scripts end as they should, have the same values in every run, and draw parameters
where it shows if nothing does.
"""

_WIDTH = 99

_PLAINER = {
    "torch.randn(": "torch.ones(",
    "torch.rand(": "torch.ones(",
    "copied(": "copy.deepcopy(",
    "new_folder()": "tempfile.mkdtemp()",
}
"""Calls that something plainer may replace."""

_AS_THEY_ARE = ("lr", "rtol", "atol", "msg", "timeout", "seconds")
"""Arguments that say how large a difference is, how it is told, and how long a hang takes."""

_WRAPPERS = (
    *("FullyShardedDataParallel", "DistributedDataParallel", "checkpoint_wrapper"),
    *("torch.compile", "torch.cat"),
)
"""What the first argument may stand for."""

_ON_CPU = (
    (r'"cuda" if torch\.cuda\.device_count\(\) >= \d+ else "cpu"', '"cpu"'),
    (r'"nccl" if device == "cuda" else "gloo"', '"gloo"'),
    (r'if device == "cuda":\n    torch\.cuda\.set_device\(.*\)\n', ""),
    (r"\.to\(device\)|, device=device\b", ""),
    (r"(?<![\w.])device(?=[,)])", '"cpu"'),
)
_ALONE = (
    (r"\b(dist\.get_rank|\w*mesh\.get_(local_)?rank)\(\)", "0"),
    (r"\bdist\.get_world_size\(\)", "1"),
    (r"\brank \{rank\}[,:] ", ""),
    (r'\bf("[^"{}]*")', r"\1"),
)
_START = 'dist.init_process_group("gloo"'
_OF_ITS_OWN = f"{_START}, store=dist.HashStore(), rank=0, world_size=1)"


def reduced(
    text: str, shows: Callable[[str], bool], *, wanted: Callable[[], bool] = lambda: True
) -> str:
    """Return the simplest text that ``shows`` takes: ``text`` itself, or one made of it step by
    step, as long as that is ``wanted``.
    """
    best, failed = "\n\n".join(_parted(text)), set[tuple[str, ...]]()

    kept = set(_KEPT.findall(text))

    def takes(body: str, candidate: str) -> bool:
        edit = _edit(body, candidate)
        if edit in failed or not kept <= set(_KEPT.findall(candidate)) or not wanted():
            return False
        taken = shows(_whole(candidate))
        if not taken:
            failed.add(edit)
        return taken

    def least(body: str) -> str:
        while True:
            before = body
            for edits in _PASSES:
                body = _after(edits, body, takes)
            if body == before:
                return body

    best = least(best)
    apart = _after(_calls_less, best, takes)  # that grows
    if apart != best:
        apart = least(apart)
    return min(map(_whole, (apart, best)), key=lambda text: len(text.splitlines()))


def patched(before: str, after: str, other: str, *, wholly: bool = True) -> str | None:
    """Return ``other`` with what makes ``after`` of ``before``, which are scripts like it.

    None where some of that does not fit; not ``wholly``, that is left out.
    """
    header = _parted(other)[0]
    old, new, lines = (_parted(text)[1].splitlines() for text in (before, after, other))
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for _, start, end, first, last in reversed([c for c in changes if c[0] != "equal"]):
        for above, below in itertools.product(range(4), range(4)):
            block = old[max(0, start - above) : end + below]
            spots = [i for i in range(len(lines)) if lines[i : i + len(block)] == block]
            if block and len(spots) == 1:
                begin = spots[0] + min(above, start)
                lines[begin : begin + end - start] = new[first:last]
                break
        else:
            if wholly:
                return None
    return _whole("\n".join([header, "", *lines]))


def _edit(before: str, after: str) -> tuple[str, ...]:
    """Return what changes from one text to another, wherever that is: what has not helped once
    seldom helps later.
    """
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return (*old, "->", *new)


def _after(
    edits: Callable[[str], Iterable[str]], body: str, takes: Callable[[str, str], bool]
) -> str:
    """Take what a pass offers, which goes through a body from its end to its start."""
    while True:
        offered = dict.fromkeys(map(_tidied, edits(body)))
        alone = _OF_ITS_OWN in body  # that stays, even if ranks are told the same by torchrun
        whole = [c for c in offered if c and c != body and (not alone or _OF_ITS_OWN in c)]
        long = {line for line in body.splitlines() if len(line) > _WIDTH}
        fits = [c for c in whole if all(len(s) <= _WIDTH or s in long for s in c.splitlines())]
        taken = next((c for c in fits if takes(body, c)), None)
        if taken is None:
            return body
        body = taken


def _whole(body: str) -> str:
    """Put a script together, with its imports; what needs no other process is run by itself."""
    lines = body.splitlines()
    header = [*itertools.takewhile(lambda line: line.startswith("#"), lines)]
    rest = "\n".join(lines[len(header) :]).strip("\n")
    rest = re.sub(r"(?m)^(\S.*)\n{2,}(?!class |def |@|\n)", r"\1\n", rest)
    gap = ["", ""] if re.match("class |def |@", rest) else [""]
    if _OF_ITS_OWN in rest:
        header[0] = re.sub(r"torchrun .*? repro\.py", "python repro.py", header[0])
    return "\n".join([*header, import_block(rest).strip(), *gap, rest, ""])


def _parted(text: str) -> tuple[str, str]:
    """Return the comment at the top of a script, and what is below its imports."""
    lines = text.splitlines()
    header = [*itertools.takewhile(lambda line: line.startswith("#"), lines)]
    last = [n for n in ast.parse(text).body if isinstance(n, ast.Import | ast.ImportFrom)][-1]
    return "\n".join(header), "\n".join(lines[last.end_lineno :]).strip("\n")


def _tidied(body: str) -> str | None:
    """Return ``body`` without functions that nothing calls; None where names are missing."""
    with contextlib.suppress(SyntaxError):
        while True:
            tree = ast.parse(body)
            used = {n.id for n in _all(tree, ast.Name) if isinstance(n.ctx, ast.Load)}
            definitions: list[ast.FunctionDef | ast.ClassDef]
            definitions = [*_all(tree, ast.FunctionDef), *_all(tree, ast.ClassDef)]
            unused = [n for n in definitions if n in tree.body and n.name not in used]
            if not unused:
                break
            body = _cut(body, unused[-1:])
        bound = {n.id for n in _all(tree, ast.Name)} - used
        bound |= {n.id for n in _all(tree, ast.Name) if not isinstance(n.ctx, ast.Load)}
        bound |= {n.name for n in definitions} | {n.arg for n in _all(tree, ast.arg)}
        bound |= {n.name for n in _all(tree, ast.ExceptHandler) if n.name}
        if not used - bound - importable() - vars(builtins).keys():
            body = re.sub(r"\n{3,}(?= )", "\n\n", re.sub(r"\n{4,}", "\n\n\n", body))
            return _joined(body).strip("\n")
    return None


def _joined(body: str) -> str:
    """Write on one line each statement that fits there."""
    for node in reversed(_statements(ast.parse(body))):
        if isinstance(node, ast.Expr | ast.Assign) and node.end_lineno != node.lineno:
            start, end = _span(body, node)
            line = re.sub(r",?\s*\n\s*(?=[)\]}])", "", body[start:end])
            line = re.sub(r"(?<=[(\[{])\s*\n\s*", "", line)
            line = re.sub(r"\s*\n\s*", " ", line)
            fits = node.col_offset + len(line) <= _WIDTH and "#" not in line
            if fits and _is_same(line, textwrap.dedent(" " * node.col_offset + body[start:end])):
                body = body[:start] + line + body[end:]
    return body


def _is_same(one: str, other: str) -> bool:
    """Tell whether two texts are the same program."""
    with contextlib.suppress(SyntaxError):
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    return False


# Passes: each yields bodies with one thing less.


def _on_cpu(body: str) -> Iterator[str]:
    yield _substituted(body, _ON_CPU)


def _one_process(body: str) -> Iterator[str]:
    """Do without torchrun."""
    if "HashStore" in body or '"cuda"' in body:
        return
    alone = _substituted(body, _ALONE)
    for call in reversed(_all(ast.parse(alone), ast.Call)):
        if ast.unparse(call.func) == "init_device_mesh" and isinstance(call.args[1], ast.Tuple):
            ones = ast.unparse(ast.Tuple([ast.Constant(1)] * len(call.args[1].elts), ast.Load()))
            alone = _replaced(alone, call.args[1], ones)
    if _START in alone:
        yield alone.replace(f"{_START})", _OF_ITS_OWN)
    else:
        yield re.sub(r"(?m)^(?=.*\binit_device_mesh\()", f"{_OF_ITS_OWN}\n", alone, count=1)


def _statements_less(body: str) -> Iterator[str]:
    """Take out runs of statements, long ones first."""
    blocks = list(_blocks(ast.parse(body)))
    for size in (8, 4, 2, 1):
        for block in blocks:
            for end in range(len(block), 0, -size):
                yield _cut(body, block[max(0, end - size) : end])


def _unwrapped(body: str) -> Iterator[str]:
    """Put what a statement holds in its place."""
    for node in reversed(_statements(ast.parse(body))):
        if isinstance(node, ast.With | ast.If | ast.For | ast.Try):
            for block in (node.body, getattr(node, "orelse", [])):
                if block:
                    yield _in_place_of(body, node, _lines(body, block))


def _mesh_less(body: str) -> Iterator[str]:
    for node in reversed(_statements(ast.parse(body))):
        if isinstance(node, ast.Assign) and "init_device_mesh(" in ast.unparse(node.value):
            yield _in_place_of(body, node, [f"{_START})"])


def _expressions_less(body: str) -> Iterator[str]:
    """Put parts of expressions in their place."""
    for old, new in _PLAINER.items():
        for found in reversed([*re.finditer(rf"(?<!def )\b{re.escape(old)}", body)]):
            yield body[: found.start()] + new + body[found.end() :]
    for node in reversed(_outside_texts(ast.parse(body))):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="to")):
                yield _replaced(body, node, _source(body, value))
            case ast.Call(func=func, args=args, keywords=keywords):
                name = ast.unparse(func)
                for keyword in reversed(keywords if "Dict" not in name else []):
                    match keyword:
                        case ast.keyword(
                            None, ast.Call(ast.Name("dict"), keywords=[_, *_] as own)
                        ):
                            text = body[_span(body, own[0])[0] : _span(body, own[-1])[1]]
                            yield _replaced(body, keyword, text)
                    if keyword.arg not in _AS_THEY_ARE:
                        yield _argument_less(body, keyword, keyword)
                match args:
                    case [ast.List(elts=[one])] | [one, *_] if name in _WRAPPERS:
                        yield _replaced(body, node, _source(body, one))
            case ast.Starred(value=ast.List(elts=[one])):
                yield _replaced(body, node, _source(body, one))
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=other, right=one):
                yield _replaced(body, node, _source(body, other))
                yield _replaced(body, node, _source(body, one))
            case ast.Dict(keys=[_, _, *_]):
                for key, value in reversed([*zip(node.keys, node.values, strict=True)]):
                    if key is not None:
                        yield _argument_less(body, key, value)
            case _:
                pass


def _names_less(body: str) -> Iterator[str]:
    """Write values where their variables are read: constants, and what is read once."""
    tree = ast.parse(body)
    names = _all(tree, ast.Name)
    stored = Counter(n.id for n in names if not isinstance(n.ctx, ast.Load))
    stored.update(n.arg for n in _all(tree, ast.arg))
    outside = _outside_texts(tree)
    for one, two in (pair for block in _blocks(tree) for pair in itertools.pairwise(block)):
        match one, two:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value),
                ast.Assign(targets=[ast.Name(id=again)]),
            ) if name == again:
                reads = [n for n in outside if getattr(n, "id", "") == name and n in ast.walk(two)]
                if len(reads) == 2:
                    inlined = _inlined(body, reads[1:], _source(body, value))
                    yield _cut(inlined, [one])
    for node in reversed(_statements(tree)):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value, text = node.targets[0].id, node.value, _source(body, node.value)
        reads = [n for n in names if n.id == name and isinstance(n.ctx, ast.Load)]
        is_plain = isinstance(value, ast.Constant | ast.Name)
        if stored[name] > 1 or len(node.targets) > 1 or "\n" in text:
            continue
        if not reads:
            yield _replaced(body, node, text)
        elif all(n in outside for n in reads) and (is_plain or len(reads) == 1):
            inlined = _inlined(body, reads, text)
            yield _cut(inlined, [node]) if reads[0].lineno > node.lineno else inlined


def _functions_less(body: str) -> Iterator[str]:
    """Write functions that are used once where they are used."""
    tree = ast.parse(body)
    names = [n for n in _all(tree, ast.Name) if isinstance(n.ctx, ast.Load)]
    for node in reversed(_all(tree, ast.FunctionDef)):
        uses = [n for n in names if n.id == node.name]
        if len(uses) != 1 or node.args.vararg or node.decorator_list:
            continue
        *before, last = node.body
        result = last.value if isinstance(last, ast.Return) else None
        if result is not None and not before:
            plain = f"lambda {ast.unparse(node.args)}: {_source(body, result)}"
            yield _cut(_replaced(body, uses[0], plain), [node])
        for call in (n for n in _all(tree, ast.Call) if n.func is uses[0]):
            given = dict(zip((a.arg for a in node.args.args), call.args, strict=False))
            given |= {k.arg: k.value for k in call.keywords if k.arg}
            texts = {name: _source(body, value) for name, value in given.items()}
            if result is not None and not before:
                text = body
                for read in reversed(_all(result, ast.Name)):
                    text = _replaced(text, read, texts.get(read.id, read.id))
                start, end = _span(body, result)
                value = text[start : end + len(text) - len(body)]
                yield _cut(_replaced(body, call, value), [node])
            for user in (n for n in _statements(tree) if getattr(n, "value", None) is call):
                block = before if result is not None else node.body
                if any(_all(n, ast.Return) for n in block):
                    continue
                lines = [f"{name} = {text}" for name, text in texts.items() if name != text]
                lines += _lines(body, block)
                if result is not None:
                    prefix = body[_span(body, user)[0] : _span(body, call)[0]]
                    lines.append(f"{prefix}{_source(body, result)}")
                yield _cut(_in_place_of(body, user, lines), [node])


def _calls_less(body: str) -> Iterator[str]:
    """Write a function that is called several times wherever it is called: what it does for one
    caller may differ then from what it does for the other.
    """
    tree = ast.parse(body)
    statements = [n for n in tree.body if isinstance(n, ast.Assign | ast.Expr)]
    users = {id(call): n for n in statements for call in _all(n, ast.Call)}
    reads = Counter(n.id for n in _all(tree, ast.Name) if isinstance(n.ctx, ast.Load))
    for node in (n for n in reversed(tree.body) if isinstance(n, ast.FunctionDef)):
        calls = [n for n in _all(tree, ast.Call) if getattr(n.func, "id", "") == node.name]
        *block, last = node.body
        plain = isinstance(last, ast.Return) and not any(_all(n, ast.Return) for n in block)
        named = all(isinstance(arg, ast.Name) for call in calls for arg in call.args)
        apart = len({id(users.get(id(call), tree)) for call in calls}) == reads[node.name]
        if not (plain and named and apart and all(id(call) in users for call in calls)):
            continue
        text = body
        for call in reversed(calls):
            given = zip((a.arg for a in node.args.args), call.args, strict=False)
            values = {name: _source(body, value) for name, value in given}
            within = body
            for name in reversed([n for n in _outside_texts(node) if isinstance(n, ast.Name)]):
                within = _replaced(within, name, values.get(name.id, name.id))
            result = "\n".join(_lines(within, [last])).removeprefix("return").strip()
            user = users[id(call)]
            own = _source(body, user)
            place = _all(ast.parse(own), ast.Call)[_all(user, ast.Call).index(call)]
            used = _inlined(own, [place], result)
            text = _in_place_of(text, user, [*_lines(within, block), *used.splitlines()])
        yield _cut(text, [node])


def _classes_less(body: str) -> Iterator[str]:
    """Write a module that calls one layer after the other as these layers."""
    for node in reversed(_all(ast.parse(body), ast.ClassDef)):
        layers = _chain(node)
        if not layers:
            continue
        texts = [_source(body, value) for value in layers.values()]
        rest = _cut(body, [node])
        sequential = f"nn.Sequential({', '.join(texts)})"
        for whole in [*(texts if len(texts) == 1 else []), sequential]:
            new = rest.replace(f"{node.name}()", whole)
            for place, name in enumerate(layers):
                index, key = (f"[{place}]", f"{place}.") if whole is sequential else ("", "")
                new = re.sub(rf"(?<=[\w)\]])\.{name}\b", index, new)
                new = re.sub(rf"\b{name}\.(?=\w)", key, new)
                new = new.replace(f'"{name}"', f'"{place}"')
            yield new


_PASSES = (
    _on_cpu,
    _one_process,
    _classes_less,
    _statements_less,
    _unwrapped,
    _mesh_less,
    _expressions_less,
    _names_less,
    _functions_less,
)


def _chain(node: ast.ClassDef) -> dict[str, ast.expr]:
    """Return the layers of a module that does nothing but call them in turn, by name."""
    methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    if "__init__" not in methods or len(methods) != len(node.body):
        return {}
    layers = dict[str, ast.expr]()
    for made in methods["__init__"].body[1:]:
        match made:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                layers[name] = made.value
            case _:
                return {}
    if (forward := methods.get("forward")) is None:
        return layers
    values = {forward.args.args[-1].arg: list[str]()}

    def called(value: ast.expr | None) -> list[str]:
        """Return the layers that a value has passed; of another one a layer that is none."""
        match value:
            case ast.Name(id=name):
                return values.get(name, [""])
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[given]):
                return [*called(given), name]
            case _:
                return [""]

    for statement in forward.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=result)], value=value):
                values[result] = called(value)
            case ast.Return(value=value):
                return layers if called(value) == [*layers] else {}
            case _:
                break
    return {}


# The text by the syntax tree:


N = TypeVar("N", bound=ast.AST)
_Placed = ast.expr | ast.stmt | ast.keyword


def _all(tree: ast.AST, kind: type[N]) -> list[N]:
    """Return the nodes of a kind, in the order in which they stand in the text."""
    found = [node for node in ast.walk(tree) if isinstance(node, kind)]
    return sorted(found, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))


def _statements(tree: ast.AST) -> list[ast.stmt]:
    return _all(tree, ast.stmt)


def _outside_texts(tree: ast.AST) -> list[ast.expr]:
    """Return the expressions that are in no f-string: of those Python 3.11 knows no places."""
    within = {id(n) for text in _all(tree, ast.JoinedStr) for n in ast.walk(text)}
    return [n for n in _all(tree, ast.expr) if id(n) not in within]


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _offset(body: str, line: int, column: int) -> int:
    lines = body.splitlines(keepends=True)
    within = lines[line - 1].encode()[:column].decode()
    return len("".join([*lines[: line - 1], within]))


def _span(body: str, node: _Placed) -> tuple[int, int]:
    start = _offset(body, node.lineno, node.col_offset)
    return start, _offset(body, node.end_lineno or 0, node.end_col_offset or 0)


def _source(body: str, node: _Placed) -> str:
    start, end = _span(body, node)
    return body[start:end]


def _replaced(body: str, node: _Placed, text: str) -> str:
    start, end = _span(body, node)
    return body[:start] + text + body[end:]


def _inlined(body: str, reads: Sequence[_Placed], text: str) -> str:
    """Write ``text`` where a variable is read, in parentheses where it needs them."""
    plain = apart = body
    for read in reversed(reads):
        plain, apart = _replaced(plain, read, text), _replaced(apart, read, f"({text})")
    return plain if _is_same(plain, apart) else apart


def _argument_less(body: str, first: _Placed, last: _Placed) -> str:
    """Take an argument or an item out, and the comma before or after it."""
    begins, ends = _span(body, first)[0], _span(body, last)[1]
    before, after = body[:begins].rstrip(), body[ends:]
    if before.endswith(","):
        return before[:-1] + after
    return before + re.sub(r"^\s*,\s*", "", after)


def _first_line(body: str, node: ast.stmt) -> int:
    """Return the line, counted from zero, that a statement begins on with its comments."""
    decorators = getattr(node, "decorator_list", [])
    first: int = min([node.lineno, *(each.lineno for each in decorators)]) - 1
    lines = body.splitlines()
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return first


def _lines(body: str, block: list[ast.stmt]) -> list[str]:
    """Return the lines of statements, indented by nothing."""
    if not block:
        return []
    lines = body.splitlines()[_first_line(body, block[0]) : block[-1].end_lineno]
    return textwrap.dedent("\n".join(lines)).splitlines()


def _in_place_of(body: str, node: ast.stmt, new: list[str]) -> str:
    lines, indent = body.splitlines(), " " * node.col_offset
    new = [f"{indent}{line}" if line else line for line in new]
    lines[_first_line(body, node) : node.end_lineno] = new
    return "\n".join(lines)


def _cut(body: str, nodes: Sequence[ast.stmt]) -> str:
    """Take statements out; what they leave is no Python if they are all of a block."""
    for node in reversed(nodes):
        body = _in_place_of(body, node, [])
    return body


def _substituted(body: str, rules: Iterable[tuple[str, str]]) -> str:
    for pattern, text in rules:
        body = re.sub(pattern, text, body)
    return body
