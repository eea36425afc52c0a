"""How many source files name each leaf, loss, option, op, oracle and engine: what adding one more
would touch.

A file names a leaf or an op where it defines or imports its class, or has its tag as a string; a
loss where its name is a string; an option where it reads, gives or lists the field and can mean
that part (``options_named.py``), or imports its own module; an oracle where it imports its module
or its name is a string that means the oracle; an engine where its name is a string. An engine's
own room and the one list of engines do not count, and neither does the string where it means an
axis of a mesh, a layout of activations or a component of torch (:data:`OTHERWISE`).
Counted are the modules of fuzzshard/ and strategies/, without those that are data: the rows of
torch's own tests (upstream/) and the mends. Runs nothing, and reads the tree that it stands in.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

import msgspec
import options_named
from common import make_console, print_json, run_main
from rich.table import Table

from fuzzshard.case.case import Optimizer, WrapGroup
from fuzzshard.case.options import DDP, FSDP1, Pipelining, Precision
from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.leaves import LEAVES
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.ops import OPS
from fuzzshard.parts.options.communication import CommunicationOption
from fuzzshard.parts.oracles import ORACLES

ROOT = Path(__file__).parent.parent
DATA = ("benchmarks/upstream/", "fuzzshard/mends/")
OPTIONS = (WrapGroup, Precision, FSDP1, DDP, Optimizer, Pipelining)
"""The parts of a case whose fields with a default are options of an engine."""
WIDEST = 100
OTHERWISE = frozenset(("shard", "tensor", "pp", "sequence", "DTensor"))
"""Beside one of these, "replicate" is an axis of a mesh or a layout of activations, and it and
"fully_shard" are components of torch. As ``input`` or ``output`` it is a layout, too.
"""

MEANS_ELSE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "loss": {
        "the field of a case": ("case/order", "report/show", "shrink/culprits"),
        "a variable of programs": (
            *("parts/ops/backward", "parts/ops/forward"),
            *("reproducer/forward_lines", "reproducer/helpers", "reproducer/watch"),
        ),
        "a class of lines in a drawing": ("report/html/schedule",),
        "a dimension of features": ("case/feature_names",),
    },
    "sum": {
        "a word of communication": ("parts/options/communication",),
        "a state of an optimizer": ("parts/options/optimizer",),
    },
    "output": {"a dtype of a policy": ("parts/options/precision",)},
    "buffer": {
        "a dtype of a policy": ("parts/options/fsdp1",),
        "a leak": ("oracles/after_run",),
    },
    "state_dict": {
        "a way to save": (
            *("engines/ddp/contract", "engines/optimizer_state", "parts/op"),
            *("parts/ops/states", "program/states"),
        ),
        "a method that no child can be called by": ("case/facts",),
        "a word for a feature": ("case/feature_words",),
    },
    "leak": {"how bad a finding is": ("parts/oracle",)},
    "warning": {
        "how bad a finding is": ("parts/oracle",),
        "what a case expects": ("case/options", "reproducer/expected", "training/expectations"),
        "the same, drawn": ("strategies/exec_order",),
        "what a line begins with": ("bisect/environment",),
    },
    "communication": {
        "an option of groups": ("parts/options/wrap_group/communication",),
        "a dimension of features": ("case/feature_names",),
    },
    "collectives": {"an instrument": ("instruments/__init__",)},
    "registration": {"an instrument": ("instruments/__init__",)},
    "dropout": {"a stream of random numbers": ("training/trainer",)},
    "forward": {
        "the method of a module": (
            *("case/facts", "case/graph", "mutate/splice", "program/forward"),
            *("shrink/leaf_passes", "strategies/tasks"),
        ),
        "when something is prefetched": (
            *("oracles/after_run", "parts/options/wrap_group/__init__"),
            *("case/schedule_state", "parts/options/wrap_group/forward_prefetch"),
        ),
        "when an exception is raised": ("parts/ops/abort",),
        "a lane or a class of a drawing": ("report/html/forward", "report/html/schedule"),
    },
    "backward": {
        "when something is prefetched": (
            *("oracles/after_run", "parts/options/wrap_group/__init__"),
            "parts/options/wrap_group/backward_prefetch",
        ),
        "when an exception is raised": ("parts/ops/abort",),
        "a lane of a drawing": ("report/html/schedule",),
        "a function of scripts": ("reproducer/writer",),
    },
    "unshard": {
        "a method that no child can be called by": ("case/facts",),
        "a method of torch that is recorded": ("training/hooks",),
    },
    "reshard": {
        "a method that no child can be called by": ("case/facts",),
        "a dimension of features": ("case/feature_names",),
    },
    "step": {"a state of an optimizer": ("parts/options/optimizer",)},
    "clip_grad_norm": {"a function of scripts": ("program/helpers",)},
}
"""What names of oracles and tags of leaves and ops mean as well, and the modules in which they
mean that. An import of the oracle's own module, or of the class, counts everywhere.
"""


def main() -> int:
    """Prints the table; exit code 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout, nothing else"
    )
    parser.add_argument(
        "--names", action="store_true", help="a line for each name, most files first"
    )
    args = parser.parse_args()
    files = {file: file.read_text() for file in sources()}
    trees = {file: ast.parse(text) for file, text in files.items()}
    named = {file: names(tree) for file, tree in trees.items()}
    kinds = {kind: count(wanted, named) for kind, wanted in vocabulary().items()}
    mentions = {file: options_named.Mentions(tree) for file, tree in trees.items()}
    kinds["option"] = rooms_of_options(mentions)
    kinds["oracle"] = rooms_of_oracles(named)
    outside = {
        engine: len([file for file in where if not in_room(engine, file)])
        for engine, where in kinds.pop("engine").items()
    }
    lines = [line for text in files.values() for line in text.splitlines()]
    figures: dict[str, object] = {
        kind: {
            "median": statistics.median(len(where) for where in counted.values()),
            "max": max(len(where) for where in counted.values()),
        }
        for kind, counted in kinds.items()
    }
    figures["engine"] = {"outside": max(outside.values())}
    figures["lines"] = len(lines)
    figures["modules"] = len(files)
    figures["over_100_columns"] = sum(len(line) > WIDEST for line in lines)
    if args.json:
        print_json(figures)
        return 0
    table = Table("what", "median files", "most files", "named in most")
    for kind, counted in kinds.items():
        most = max(counted, key=lambda name: len(counted[name]))
        sizes = [len(where) for where in counted.values()]
        table.add_row(kind, f"{statistics.median(sizes):g}", str(max(sizes)), most)
    most = max(outside, key=lambda name: outside[name])
    table.add_row(
        "engine, outside its room",
        f"{statistics.median(outside.values()):g}",
        str(outside[most]),
        most,
    )
    console = make_console(args)
    console.print(table)
    console.print(
        f"{len(lines)} lines in {len(files)} modules, {figures['over_100_columns']} over {WIDEST} "
        "columns"
    )
    if args.names:
        for kind, counted in kinds.items():
            for name, where in sorted(counted.items(), key=lambda item: -len(item[1])):
                console.print(f"{len(where):4}  {kind} {name}")
    return 0


OF_SUBJECTS = (
    *("fuzzshard/subject/", "fuzzshard/checking/"),
    *("fuzzshard/commands/check", "fuzzshard/testing"),
)


def sources() -> list[Path]:
    """The modules that are no data."""
    found = [*(ROOT / "fuzzshard").rglob("*.py"), *(ROOT / "strategies").rglob("*.py")]
    return [
        file
        for file in sorted(found)
        if not file.relative_to(ROOT).as_posix().startswith((*DATA, "fuzzshard/strategies/"))
    ]


def vocabulary() -> dict[str, dict[str, tuple[str, ...]]]:
    """For each kind its names, and the identifiers and strings that stand for each."""
    return {
        "leaf": {
            leaf.__name__: (leaf.__name__, f"'{leaf.__struct_config__.tag}'") for leaf in LEAVES
        },
        "loss": {name: (f"'{name}'",) for name in LOSSES},
        "op": {op.__name__: (op.__name__, f"'{op.__struct_config__.tag}'") for op in OPS},
        "engine": {engine: (f"'{engine}'",) for engine in ENGINES},
    }


def in_room(engine: str, file: Path) -> bool:
    """Whether ``file`` is about this engine, or is the list of all engines."""
    path = file.relative_to(ROOT).as_posix()
    return path == "fuzzshard/parts/engines.py" or path.startswith(f"fuzzshard/engines/{engine}/")


def otherwise(tree: ast.AST) -> set[ast.AST]:
    """The strings that do not name an engine, whatever they are: see :data:`OTHERWISE`."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="input" | "output", value=value):
                found.add(value)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                found |= _beside(elements)
            case ast.Dict(keys=keys):
                found |= _beside([key for key in keys if key is not None])
    return found


def _beside(elements: list[ast.expr]) -> set[ast.AST]:
    """The ``elements`` of one tuple, list, set or dict, if one of them says what they are."""
    values = {element.value for element in elements if isinstance(element, ast.Constant)}
    return set() if values.isdisjoint(OTHERWISE) else set(elements)


def names(tree: ast.AST) -> frozenset[str]:
    """Classes that are imported or defined; fields that are read or given, as ``.field``; strings,
    quoted.
    """
    found: set[str] = set()
    elsewhere = otherwise(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("fuzzshard"):
                found.add(module)
                found |= {alias.name for alias in node.names}
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                found.add(f".{name}")
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(f".{name}")
            case ast.Constant(value=str(value)) if node not in elsewhere or value not in ENGINES:
                found.add(f"'{value}'")
    return frozenset(found)


def rooms_of_options(mentions: Mapping[Path, options_named.Mentions]) -> dict[str, list[Path]]:
    """The files that mean each option, by its part and its field."""
    listed = [
        (part.__name__, field.name)
        for part in OPTIONS
        for field in msgspec.structs.fields(part)
        if not field.required
    ]
    shared = {each for each in listed if Counter(name for _, name in listed)[each[1]] > 1}
    listed += [("communication", word) for word in get_args(CommunicationOption)]
    found = {}
    for part, name in listed:
        else_in = options_named.MEANS_ELSE.get(f"{part}.{name}", {}).values()
        means_else = {m for modules in else_in for m in modules}
        found[f"{part}.{name}"] = [
            file
            for file, module in mentions.items()
            if knows_cases(file)
            and options_named.mentioned(part, name, (part, name) in shared, module)
            and short(file) not in means_else
            and not in_other_room(short(file), part)
        ]
    return found


def in_other_room(module: str, part: str) -> bool:
    """Whether a module is about options of another part."""
    rooms, own = "parts/options/", f"parts/options/{folder(part)}"
    return module.startswith(rooms) and module != own and not module.startswith(f"{own}/")


def folder(part: str) -> str:
    """The file or folder of the options of a part: ``wrap_group`` for WrapGroup."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", part).lower()


def short(file: Path) -> str:
    """The path of a module as lists of exceptions have it."""
    return file.relative_to(ROOT).with_suffix("").as_posix().removeprefix("fuzzshard/")


def rooms_of_oracles(named: Mapping[Path, frozenset[str]]) -> dict[str, list[Path]]:
    """The files that name each oracle, and not something else by the same word."""
    wanted = {o.name: (type(o).__module__, f"'{o.name}'") for o in ORACLES}
    return count(wanted, named)


def knows_cases(file: Path) -> bool:
    """Whether a module deals with cases: words of those that check a user's model mean no part."""
    return not file.relative_to(ROOT).as_posix().startswith(OF_SUBJECTS)


def means_else(word: str, file: Path) -> bool:
    """Whether ``word``, quoted, has another meaning in this file."""
    modules = {m for files in MEANS_ELSE.get(word.strip("'"), {}).values() for m in files}
    path = file.relative_to(ROOT).with_suffix("").as_posix()
    if word.startswith("'") and not knows_cases(file):
        return True
    return word.startswith("'") and not modules.isdisjoint((path, path.removeprefix("fuzzshard/")))


def count(
    wanted: Mapping[str, Iterable[str]], named: Mapping[Path, frozenset[str]]
) -> dict[str, list[Path]]:
    """The files in which each name stands, and means what it is the name of."""
    return {
        name: [
            file
            for file, found in named.items()
            if any(form in found and not means_else(form, file) for form in forms)
        ]
        for name, forms in wanted.items()
    }


if __name__ == "__main__":
    run_main(main)
