"""Write the parts of the site that the code knows: a hook of MkDocs, which imports fuzzshard.

A page asks for a part with a line ``<!-- generated: NAME -->``, where ``NAME`` is a key of
:data:`PARTS`, and for a file, or a class of one, with a line
``<!-- source: PATH -->`` or ``<!-- source: PATH CLASS -->``. Links from a page to notes,
ARCHITECTURE.md and CHANGELOG.md are written as they work in the repository; the site gets copies
of these files.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import fuzzshard.strategies
from fuzzshard import cli, events, testing
from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.corpus.causes import issue_link, weights_text
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import entry_files
from fuzzshard.mending.mend import COMPONENTS, Mend, own_mends
from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.moments import MOMENTS
from fuzzshard.parts.options.communication import WORDS
from fuzzshard.parts.options.ddp import DDP_OPTIONS
from fuzzshard.parts.options.fsdp1 import FSDP1_OPTIONS
from fuzzshard.parts.options.optimizer import OPTIMIZER_OPTIONS
from fuzzshard.parts.options.precision import PRECISION_OPTIONS
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS
from fuzzshard.parts.oracle import AcrossRanks, Invariant, Oracle, TensorOracle
from fuzzshard.parts.oracles import ORACLES
from fuzzshard.verdict import Finding, Status

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

Schema = Mapping[str, Any]

ROOT = Path(__file__).parents[1]
COPIED = ("ARCHITECTURE.md", "CHANGELOG.md", "notes/*.md")
"""Files outside of ``docs/`` that the site has pages of."""


# What MkDocs calls


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add pages of the files that are :data:`COPIED`."""
    from mkdocs.structure.files import File

    for file in itertools.chain(*map(ROOT.glob, COPIED)):
        path = str(file.relative_to(ROOT))
        files.append(File.generated(config, path, abs_src_path=str(file)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks of a page by what they name, and links by those of the site."""
    is_copied = any(Path(page.file.src_uri).match(pattern) for pattern in COPIED)
    return with_links(with_parts(markdown), is_copied=is_copied)


def with_parts(markdown: str) -> str:
    """Return a page with every mark replaced; raises an error for what is not there."""
    markdown = re.sub(
        r"^<!-- source: (\S+)(?: (\w+))? -->$",
        lambda mark: f"```python\n{_source(mark[1], mark[2])}```",
        markdown,
        flags=re.MULTILINE,
    )
    return re.sub(
        r"^<!-- generated: (\w+) -->$",
        lambda mark: PARTS[mark[1]]().strip("\n"),
        markdown,
        flags=re.MULTILINE,
    )


def _source(path: str, name: str | None) -> str:
    """Return the text of a file, or of the class ``name`` in it."""
    text = (ROOT / path).read_text()
    if name is None:
        return text
    classes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    found = next(node for node in classes if node.name == name)
    return f"{ast.get_source_segment(text, found)}\n"


def with_links(markdown: str, *, is_copied: bool) -> str:
    """Return a page whose links to and from ``docs/`` are those of the site."""
    if is_copied:
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    return re.sub(r"\]\(\.\./(?=(?:\.\./)*(?:notes/|[A-Z]+\.md))", "](", markdown)


# Words


def prose(docstring: str | None) -> str:
    """Return a docstring as Markdown: roles of Sphinx become code."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", inspect.cleandoc(docstring or ""))
    return text.replace("``", "`")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.replace('|', chr(92) + '|').split()) for cell in line)} |"
        for line in lines
    )


def sections(level: int, entries: Iterable[tuple[str, str]]) -> str:
    """Write a heading with a text below for each of ``entries``."""
    return "\n\n".join(f"{'#' * level} {heading}\n\n{text}" for heading, text in entries)


# The parts


def commands() -> str:
    """Every command with its help."""
    text = cli.app.generate_docs(output_format="markdown")
    first = text.index(f"## {cli.app.name[0]} ")  # what comes before is a table of contents
    return "\n\n".join(map(_block, text[first:].split("\n\n")))


def _block(paragraph: str) -> str:
    """Keep the lines of a paragraph that has examples, or words in columns."""
    is_list = paragraph.startswith(("*", "#", "```", "-"))
    in_columns = re.search(r"^ *\S.*?\S {2,}\S|^ {2,}\S", paragraph, flags=re.MULTILINE)
    if is_list or not in_columns:
        return paragraph
    first, _, rest = paragraph.partition("\n")
    if first.startswith(("For example", "Exit code")):
        return f"{first}\n\n```text\n{inspect.cleandoc(rest)}\n```"
    return f"```text\n{paragraph}\n```"


def exit_codes() -> str:
    """The exit codes that all commands share."""
    lines = cli.EXIT_CODES.splitlines()[1:]
    return table(("exit code", "meaning"), (line.split(maxsplit=1) for line in lines))


def engines() -> str:
    """What a case can be trained with."""
    rows = ((f"`{name}`", spec.title, spec.meaning) for name, spec in ENGINES.items())
    return table(("engine", "is", "in a case"), rows)


def calls() -> str:
    """Every public call at every moment; numbers name the reasons below the table."""
    found = runpy.run_path(str(ROOT / "tests/api/calls.py"))["Calls"].load()
    notes: dict[Any, int] = {}

    def text(cell: Any) -> str:
        if cell.never is None:
            return str(cell.kind)
        return f"{cell.kind} ({notes.setdefault(cell.never, len(notes) + 1)})"

    rows = [(f"`{name}`", *map(text, row.values())) for name, row in found.rows.items()]
    reasons = (
        f"{number}. " + (f'"{never.why}" ({never.source})' if never.source else never.why)
        for never, number in notes.items()
    )
    counts = ", ".join(f"{number} {kind}" for kind, number in found.counts().items())
    excuses = ((f"`{name}`", why) for name, why in found.excused.items())
    parts = (
        f"Cells: {counts}.",
        table(("call", *MOMENTS.values()), rows),
        "\n".join(reasons),
        "## Open at every moment",
        table(("call", "because"), ((f"`{name}`", why) for name, why in found.open.items())),
        "## Calls without a row",
        table(("call", "because"), excuses),
    )
    return "\n\n".join(parts)


def features() -> str:
    """Every feature, a table for each dimension."""
    by_dimension: dict[str, list[tuple[str, str]]] = {}
    for name, meaning in FEATURES.items():
        by_dimension.setdefault(name.partition(":")[0], []).append((f"`{name}`", meaning))
    return sections(2, ((d, table(("feature", "a case has"), r)) for d, r in by_dimension.items()))


def statuses() -> str:
    """The outcomes of a case."""
    return prose(Status.__doc__).partition("\n\n")[2] + "\n"


def lifecycles() -> str:
    """What becomes of a finding."""
    return prose(Lifecycle.__doc__).partition("\n\n")[2] + "\n"


def signatures() -> str:
    """The signatures that oracles give their findings."""
    rows = ((f"[`{o.name}`](oracles.md#{o.name})", f"`{_signature(o)}`") for o in ORACLES)
    return table(("oracle", "signature"), rows)


def _signature(oracle: Oracle) -> str:
    detail = "/[DETAIL]" if oracle.tells_apart else ""
    plain = oracle.signature("ENGINE", "[DETAIL]")
    return plain if "DETAIL" in plain else f"{plain}{detail}"


def oracles() -> str:
    """Every oracle: what it sees, and what it cannot see."""
    return sections(2, ((oracle.name, "\n\n".join(_oracle(oracle))) for oracle in ORACLES))


def _oracle(oracle: Oracle) -> Iterator[str]:
    yield prose(type(oracle).__doc__)
    facts = [f"Compared with: {_due(oracle)}"]
    if oracle.rests_on:
        facts.append(f"Instrument: {oracle.rests_on}")
    if Finding(oracle=oracle.name, engine="", observed="", expected="").internal:
        facts.append("Class: internal")
    facts.append(f"Signature: `{_signature(oracle)}`")
    yield "\n".join(f"- {fact}" for fact in facts)


def _due(oracle: Oracle) -> str:
    if isinstance(oracle, TensorOracle):
        return "the reference, tensor by tensor"
    if isinstance(oracle, AcrossRanks):
        return "the other ranks"
    if isinstance(oracle, Invariant):
        return "what every correct implementation keeps"
    if oracle.rests_on:
        return "a prediction from the documentation"
    return "the documentation"


def case_format() -> str:
    """Every struct that a case is made of."""
    return _structs(Case)


def communication_words() -> str:
    """What a wrap group may be told about its collectives."""
    rows = ((f"`{name}`", f"{word.meaning}: `{word.call}`") for name, word in WORDS.items())
    return table(("word", "meaning"), rows)


MEANINGS = {
    struct: {option.name: prose(type(option).__doc__).partition("\n\n")[0] for option in options}
    for struct, options in (
        ("DDP", DDP_OPTIONS),
        ("FSDP1", FSDP1_OPTIONS),
        ("Optimizer", OPTIMIZER_OPTIONS),
        ("Precision", PRECISION_OPTIONS),
        ("WrapGroup", GROUP_OPTIONS),
    )
}
"""What the fields of structs mean whose options have a file each."""


def entry_format() -> str:
    """The fields of an entry around its case."""
    return _structs(CorpusEntry, ("CorpusEntry", "Confirmation", "Culprit", "Finding"))


def event_format() -> str:
    """Every event of ``--json``."""
    return _structs(events.AnyEvent)


def _structs(root: Any, names: Iterable[str] = ()) -> str:
    """Write a section for each of ``names`` among the structs of ``root``, by default for all."""
    schema = msgspec.json.schema(root)["$defs"]
    structs = [name for name, definition in schema.items() if "properties" in definition]
    linked = list(names) or structs
    return sections(2, ((name, _struct(schema, name, linked)) for name in linked))


def _struct(schema: Schema, name: str, linked: Sequence[str]) -> str:
    definition = schema[name]
    required = definition.get("required", ())
    rows = (
        (
            f"`{field}`",
            _type(schema, type_, linked),
            "required" if field in required else _default(type_),
        )
        for field, type_ in definition["properties"].items()
    )
    described = prose(definition.get("description", ""))
    meanings = MEANINGS.get(name)
    if meanings is None:
        return f"{described}\n\n{table(('field', 'type', 'default'), rows)}"
    told = ((*row, meanings.get(row[0].strip("`"), "")) for row in rows)
    return f"{described}\n\n{table(('field', 'type', 'default', 'meaning'), told)}"


def _type(schema: Schema, field: Schema, linked: Sequence[str]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        if "enum" in schema[name]:
            return _type(schema, schema[name], linked)
        return f"[{name}](#{name.lower()})" if name in linked else name
    if "anyOf" in field:
        return " or ".join(_type(schema, each, linked) for each in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in field["enum"])
    if field.get("type") == "array":
        of = field.get("items") or field.get("prefixItems", [{}])[0]
        return f"array of {_type(schema, of, linked)}"
    if isinstance(of := field.get("additionalProperties"), Mapping):
        return f"object of {_type(schema, of, linked)}"
    return str(field.get("type", "any"))


def _default(field: Schema) -> str:
    return f"`{msgspec.json.encode(field['default']).decode()}`" if "default" in field else ""


def python_api() -> str:
    """The functions and classes for tests of the user's own."""
    modules = {"fuzzshard.testing": testing, "fuzzshard.strategies": fuzzshard.strategies}
    return sections(
        2,
        (
            (f"`{name}`", sections(3, map(_member, [getattr(m, n) for n in sorted(m.__all__)])))
            for name, m in modules.items()
        ),
    )


def _member(member: Callable[..., Any]) -> tuple[str, str]:
    name = member.__name__
    if isinstance(member, type) and issubclass(member, msgspec.Struct):
        public = {n: f for n, f in vars(member).items() if inspect.isfunction(f) and n[0] != "_"}
        methods = (
            f"`{_call(n, inspect.signature(f))}`: {prose(f.__doc__)}" for n, f in public.items()
        )
        return name, "\n\n".join((prose(member.__doc__), *methods))
    initial = prose(member.__init__.__doc__) if isinstance(member, type) else ""  # type: ignore[misc]
    call = f"```python\n{_call(name, inspect.signature(member))}\n```"
    return name, "\n\n".join(filter(None, (call, prose(member.__doc__), initial)))


def _call(name: str, signature: inspect.Signature) -> str:
    """Write a signature, a parameter a line where it is long; engines by default are all."""
    empty = inspect.Parameter.empty
    words: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(f"{parameter.name}: {_plain(parameter.annotation)}")
        if parameter.default is not empty:
            is_all = parameter.default == ALL_ENGINES
            words[-1] += f" = {'ALL_ENGINES' if is_all else repr(parameter.default)}"
        if parameter.kind is parameter.POSITIONAL_ONLY:
            words.append("/")
    result = "" if signature.return_annotation is empty else _plain(signature.return_annotation)
    returned = f" -> {result}" if result not in ("", "None") else ""
    line = f"{name}({', '.join(words)}){returned}"
    return (
        line if len(line) < 80 else f"{name}(\n    {f',{chr(10)}    '.join(words)},\n){returned}"
    )


def _plain(annotation: object) -> str:
    """Write an annotation without its modules and forward references."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"ForwardRef\('(.*?)'\)|\b[a-z_]+\.", lambda m: m[1] or "", text)


def trophies() -> str:
    """Every known bug, component by component, with how the corpus shows it."""
    shown: dict[str, list[CorpusEntry]] = {}
    for entry in map(read_entry, entry_files([ROOT / "corpus" / "findings"])):
        shown.setdefault(entry.cause, []).append(entry)
    by_component: dict[str, list[Mend]] = {component: [] for component in COMPONENTS}
    for mend in own_mends().values():
        by_component[mend.component].append(mend)
    head = ("known bug", "weight", "torch", "shows as", "entries", "in public")
    counts = weights_text(mend.weight for mend in own_mends().values())
    tables = (
        (component, table(head, (_trophy(mend, shown.get(mend.slug, [])) for mend in mends)))
        for component, mends in by_component.items()
        if mends
    )
    return f"{len(own_mends())} known bugs: {counts}.\n\n{sections(2, tables)}"


def _trophy(mend: Mend, shown: list[CorpusEntry]) -> tuple[str, ...]:
    kinds = {entry.severity for entry in shown}
    found = [
        ", ".join(filter(None, (issue_link(look.link), look.says)))
        for look in mend.public
        if look.link
    ]
    return (
        f"**{mend.title}**<br>`{mend.slug}`",
        mend.weight,
        mend.torch.text(),
        ", ".join(sorted(kinds)),
        str(len(shown)),
        "<br>".join(found) or "not found",
    )


PARTS: Mapping[str, Callable[[], str]] = {
    part.__name__: part
    for part in (
        calls,
        case_format,
        commands,
        communication_words,
        engines,
        entry_format,
        event_format,
        exit_codes,
        features,
        lifecycles,
        oracles,
        python_api,
        signatures,
        statuses,
        trophies,
    )
}
"""What a page can ask for, by the name of the function that writes it."""
