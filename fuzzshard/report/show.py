"""A Case, or a corpus entry, drawn for a person to read."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fuzzshard.analysis.features import features
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.program_text import program
from fuzzshard.case.case import ALL_ENGINES, Case, Mesh
from fuzzshard.case.graph import Block
from fuzzshard.case.phrases import span
from fuzzshard.corpus.entry import CorpusEntry, Culprit
from fuzzshard.corpus.expectation import known_versions
from fuzzshard.corpus.store import replay_command
from fuzzshard.drafts.words import markdown
from fuzzshard.mending.mend import Mend
from fuzzshard.parts.engines import OPTIONS
from fuzzshard.parts.op import expression
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS
from fuzzshard.parts.part import Part, off_default
from fuzzshard.report.module_tree import draw_forward, module_tree, shape_text
from fuzzshard.verdict import Finding


def show(case: Case, findings: Iterable[Finding] = ()) -> RenderableType:
    """Return the whole experiment; the ops that ``findings`` name are marked in the schedule."""
    found = inferred(case)
    marks = {f.op: f"{f.oracle} of {f.engines}" for f in reversed(tuple(findings))}
    sections: list[tuple[str, RenderableType]] = [
        ("Setting", _setting(case)),
        ("Model", module_tree(case, found)),
        *((f"Forward of {expression(p)}", _lines(draw_forward(b))) for p, b in _blocks(found)),
        ("Wrap groups", _wrap_groups(case, found)),
        *([("Freeze plan", _freeze_plan(case))] if case.freezes else []),
        *([("Options", _pairs(options))] if (options := _options(case)) else []),
        (f"Mesh: {case.mesh.text()}", _lines(draw_mesh(case.mesh))),
        ("Schedule", _schedule(case, marks)),
        ("Features", Text(", ".join(sorted(features(case))))),
    ]
    return Group(*itertools.chain.from_iterable(_section(*section) for section in sections))


def show_entry(entry: CorpusEntry) -> RenderableType:
    """Return a finding first, what was observed against what was expected, then the case; a bare
    case alone.
    """
    case = show(entry.case, entry.findings)
    if not entry.signature:
        return case
    refused: dict[str, str] = {
        name: note for name, note in entry.notes.items() if name in ALL_ENGINES
    }
    notes = {name: note for name, note in entry.notes.items() if name not in ALL_ENGINES}
    return Group(
        *_section("Finding", _verdict(entry)),
        *(
            _section("Observed against expected", observed_and_expected(entry.findings))
            if entry.findings
            else ()
        ),
        *(
            _section("What it takes: the finding goes away", _culprits(entry.culprits))
            if entry.culprits
            else ()
        ),
        *(_section("Not judged", _pairs(refused)) if refused else ()),
        *(_section("Notes", _pairs(notes)) if notes else ()),
        *itertools.chain.from_iterable(
            _section(f"Stack of {whose}", Text(stack))
            for whose, stack in distinct_stacks(entry.stacks)
        ),
        case,
    )


def show_mend(mend: Mend) -> RenderableType:
    """Return a known bug of torch: what is wrong, what was promised, who runs into it."""
    looks = sorted(mend.public, key=lambda look: not look.is_same)
    about = {
        "name": mend.slug,
        "component": mend.component,
        "torch": mend.torch.text(),
        "in public": "\n".join(f"{look.link} {look.says}".strip() for look in looks if look.link)
        or "none found",
        "mend": str(mend.file),
    }
    told = {
        "Documented": mend.contract.text(),
        "Who runs into it": mend.setup,
        "What to do about it": mend.workaround,
    }
    said = {"Cause": mend.diagnosis, **told}
    return Group(
        *_section(mend.title, _pairs(about)),
        *itertools.chain.from_iterable(
            _section(title, Text(markdown(text))) for title, text in said.items() if text
        ),
        *(_section("Example", Text(mend.example.strip())) if mend.example else ()),
    )


def draw_mesh(mesh: Mesh) -> list[str]:
    """Return ranks by row; a row is one shard group, a column holds replicas.

    With further axes only the first slice of each is drawn.
    """
    if mesh.tensor or mesh.pipeline:
        stride = mesh.tensor or 1
        plain = draw_mesh(Mesh(shard=mesh.shard, replicate=mesh.replicate))
        spread = [
            re.sub(r"\d+", lambda at: f"{mesh.ranks[int(at[0]) * stride]:>{len(at[0])}}", row)
            for row in plain
        ]
        return [
            *spread,
            f"      x pipeline {mesh.pipeline or 1} x tensor {stride} (ranks next to each other)",
        ]
    width = len(str(mesh.size - 1)) + 2
    rows = [
        "".join(f"{rank:>{width}}" for rank in mesh.ranks[row * mesh.shard :][: mesh.shard])
        for row in range(mesh.replicate or 1)
    ]
    if mesh.replicate is None:
        return [f"ranks {rows[0]}   → shard"]
    first, *rest = rows
    return [
        f"ranks {first}   → shard",
        *(f"      {row}" for row in rest),
        f"      {'↓':>{width}} replicate",
    ]


def _section(title: str, body: RenderableType) -> tuple[RenderableType, ...]:
    return Text(title, style="bold underline"), Padding(body, (0, 0, 1, 2))


def _lines(lines: Iterable[str]) -> Text:
    return Text("\n".join(lines))


def _blocks(found: Inferred) -> list[tuple[str, Block]]:
    return [(path, module) for path, module in found.modules.items() if isinstance(module, Block)]


def _pairs(pairs: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in pairs.items():
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _setting(case: Case) -> Table:
    batch = f"{case.inputs.batch}" + (f", {case.inputs.seq}" if case.inputs.seq else "")
    tensors = (
        f"{name} ({batch}) ids below {spec.size}"
        if spec.kind == "ids"
        else f"{name} ({batch}, {spec.size})"
        for name, spec in zip(case.model.inputs, case.inputs.tensors, strict=True)
    )
    numel = sum(math.prod(shape) for shape in inferred(case).parameters.values())
    return _pairs(
        {
            "engines": ", ".join(case.engines) + " against the reference",
            "inputs": ", ".join(tensors),
            "values": f"{case.values} {case.dtype}, seed {case.seed}",
            "loss": case.loss,
            "optimizer": case.optimizer.text(),
            "parameters": f"{len(inferred(case).parameters)} with {numel} elements",
        }
    )


def _wrap_groups(case: Case, found: Inferred) -> RenderableType:
    if not case.wrap:
        return Text("none: every parameter stays whole on every rank")
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    always = [option.name for option in GROUP_OPTIONS if option.always_told]
    for column in ("group", "fully_shard(...)", *always, "manages"):
        table.add_column(column)
    for index, group in enumerate(case.wrap):
        managed = [
            f"{fqn} {shape_text(found.parameters[fqn])}"
            for fqn, owner in found.owners.items()
            if owner == index
        ]
        table.add_row(
            str(index),
            Text("\n".join(map(expression, group.modules))),
            *(str(getattr(group, name)) for name in always),
            Text("\n".join(managed) or "nothing"),
        )
    return table


def _freeze_plan(case: Case) -> RenderableType:
    return _lines(
        f"{expression(f.target)}.requires_grad_(False) {'after' if f.after_wrap else 'before'} "
        "wrapping"
        for f in case.freezes
    )


_SHOWN_ELSEWHERE = frozenset(
    (
        "ties",
        "checkpoints",
        "freezes",
        "wrap",
        "engines",
        "optimizer",
        "dtype",
        "values",
        "loss",
        *OPTIONS,
    )
)


def _options(case: Case) -> dict[str, str]:
    """Everything else that is not at its default, as it is spelled in the case."""
    options = {
        f"inputs.{name}": str(getattr(case.inputs, name)) for name in off_default(case.inputs)
    }
    for field in OPTIONS:
        part = getattr(case, field)
        options |= {f"{field}.{name}": str(getattr(part, name)) for name in off_default(part)}
    options.pop("inputs.seq", None)
    if case.inputs.rank_batches:
        options["inputs.rank_batches"] = "\n".join(map(_brief, case.inputs.rank_batches))
    for name in off_default(case):
        if name not in _SHOWN_ELSEWHERE:
            value = getattr(case, name)
            options[name] = (
                "\n".join(map(_brief, value)) if isinstance(value, tuple) else str(value)
            )
    for index, group in enumerate(case.wrap):
        for option, value in group.told():
            if value != option.default and not option.always_told:
                options[f"group {index}: {option.name}"] = _brief(value)
    return options


def _brief(value: object) -> str:
    """Return a part of a case as ``field=value`` for what is not at its default."""
    if not isinstance(value, Part):
        return str(value)
    fields = [f.name for f in msgspec.structs.fields(value) if f.required]
    return ", ".join(f"{name}={getattr(value, name)}" for name in (*fields, *off_default(value)))


def _schedule(case: Case, marks: Mapping[int, str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for index, line in enumerate(program(case)):
        text = Text(line)
        if index in marks:
            text.append(f"   ← {marks[index]}", style="bold red")
        table.add_row(Text(f"{index:>3}", style="dim"), text)
    return table


def _verdict(entry: CorpusEntry) -> Table:
    pairs = {
        "signature": entry.signature,
        "verdict": f"{entry.status}, {entry.comparison} comparison"
        if entry.comparison
        else str(entry.status),
        "seen with": f"torch {entry.torch} on {entry.device}, {entry.mesh}",
    }
    if entry.lifecycle is not None:
        pairs["lifecycle"] = ", ".join(filter(None, (str(entry.lifecycle), known_versions(entry))))
    if entry.issue:
        pairs["issue"] = entry.issue
    if entry.confirmed is not None:
        pairs["confirmed"] = f"{entry.confirmed.text()} in fresh worlds"
    if entry.unshrunk:
        pairs["shrunk"] = "not yet: fuzzshard shrink goes on with it"
    return _pairs(pairs)


def _culprits(culprits: Iterable[Culprit]) -> Table:
    """Return what every change of the case that makes the finding go away shows in its place."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for column in ("change", "then"):
        table.add_column(column, overflow="fold")
    for culprit in culprits:
        table.add_row(Text(culprit.change), Text(culprit.outcome))
    return table


def observed_and_expected(findings: Iterable[Finding]) -> RenderableType:
    """Return observed against expected values; what ranks have in common is said once."""
    ranks: dict[Finding, list[int]] = {}
    for finding in findings:
        ranks.setdefault(replace(finding, rank=0), []).append(finding.rank)
    return Group(*itertools.chain.from_iterable(_compared(*each) for each in ranks.items()))


def _compared(finding: Finding, ranks: Sequence[int]) -> tuple[RenderableType, ...]:
    where = ", ".join(filter(None, (_op(finding), among(ranks))))
    what = ", ".join(filter(None, (f"{finding.oracle} of {finding.engines}", finding.name)))
    pairs = {"observed": finding.observed, "expected": finding.expected}
    if finding.error is not None:
        allowed = f"at most {finding.bound:.3g}" if finding.bound else "none"
        pairs["error"] = f"{finding.error:.3g}, {allowed} is allowed"
    if finding.precise:
        pairs["trained in"] = finding.precise
    if finding.doubt:
        pairs["but"] = finding.doubt
    return Text(f"{where}: {what}"), Padding(_pairs(pairs), (0, 0, 0, 2))


def _op(finding: Finding) -> str:
    return f"op {finding.op}" if finding.op >= 0 else ""


_PER_PROCESS = re.compile(r"\b0x[0-9a-f]+\b|\bindex=\d+|\bcuda:\d+")
"""Addresses and devices: stacks that differ in nothing else are one."""
_MARKERS = re.compile(r"^[ ^~]+\n", re.MULTILINE)
"""The line in which a traceback underlines a part of the line above."""
_RANK = re.compile(r"(?:^| )rank (\d+)$")
_OWN = re.compile(r'\s*File "(?:fuzzshard/world|threading\.py)')


def distinct_stacks(stacks: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return whose stack it is, ``"ranks 0-3"``, and its text, once for all ranks that have it.

    The thread of each rank that only waits for messages of the coordinator is left out.
    """
    owners: dict[tuple[str, str], list[int]] = {}
    texts: dict[tuple[str, str], str] = {}
    for owner, stack in stacks.items():
        rank, text = _RANK.search(owner), _plain(stack)
        key = (owner if rank is None else owner[: rank.start()], _PER_PROCESS.sub("", text))
        texts.setdefault(key, text)
        owners.setdefault(key, []).extend([int(rank[1])] if rank else [])
    return [
        (" ".join(filter(None, (key[0], among(ranks) if ranks else ""))), texts[key])
        for key, ranks in owners.items()
    ]


def among(ranks: Sequence[int]) -> str:
    """Return ``"rank 1"`` or ``"ranks 0-3"``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {span(ranks)}"


def _plain(stack: str) -> str:
    threads = _MARKERS.sub("", stack).strip("\n").split("\n\n")
    return "\n\n".join([thread for thread in threads if not _only_waits(thread)] or threads)


def _only_waits(thread: str) -> bool:
    head, *frames = thread.splitlines() or [""]
    return head.startswith("Thread 0x") and all(_OWN.match(frame) for frame in frames)


WIDTH = 100


def drawn(entry: CorpusEntry, path: Path, console: Console | None = None) -> str:
    """Return what ``fuzzshard show`` prints of ``entry``, which lies at ``path``, on ``console``.

    The command that replays it is one line, however long: people copy it.
    """
    text = as_text(show_entry(entry), console)
    return f"{text}\nReplay\n  {replay_command(path, entry)}" if entry.signature else text


def drawn_findings(findings: Iterable[Finding]) -> str:
    """Return what was observed against what was expected."""
    return as_text(observed_and_expected(findings))


def as_text(drawing: RenderableType, console: Console | None = None) -> str:
    """Return ``drawing`` without blanks at ends of lines, and without colours for no console."""
    console = console or Console(
        width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False
    )
    with console.capture() as capture:
        console.print(drawing)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
