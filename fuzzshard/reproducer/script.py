"""Assembles the script from the model's source, the helpers it needs, one program and one verdict."""

from __future__ import annotations

import importlib.metadata
import textwrap

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.model.source import model_source
from fuzzshard.reproducer import helpers
from fuzzshard.reproducer.aim import Aim, aim_of
from fuzzshard.reproducer.imports import import_block
from fuzzshard.reproducer.program import Program
from fuzzshard.reproducer.setup import (
    assignment,
    checkpoint_lines,
    ddp_expression,
    freeze_lines,
    mesh_line,
    wrap_lines,
)
from fuzzshard.reproducer.story import story
from fuzzshard.verdict import Finding

DESYNC_SECONDS = 30
"""After how long a lost collective ends the script by itself."""


def script(
    case: Case, *, signature: str = "", finding: Finding | None = None, torch_version: str = ""
) -> str:
    """The text of a standalone ``repro.py``: exits 1 where ``case`` shows ``finding``, else 0.

    With a finding it looks at the very tensors and the op that the finding names, and requires what the
    finding's rung requires. From a ``signature`` alone it looks at everything of that kind; with
    neither it compares all tensors. ``torch_version`` is that of the finding, by default the installed
    one. Raises :class:`UsageError` for a registration signature without its finding.
    """
    aim = aim_of(case, signature, finding)
    version = torch_version or importlib.metadata.version("torch")
    writer = _Compare(case, aim) if aim.trains_reference else _Alone(case, aim)
    header = story(aim, signature, finding, case.mesh.size, version)
    return (
        "\n\n\n".join(
            [f"{header}\n{import_block(case, aim, writer.uses)}", *writer.definitions(), writer.main()]
        )
        + "\n"
    )


class _Writer:
    """What all scripts have in common; ``program`` is the schedule under the names of a subclass."""

    def __init__(self, case: Case, aim: Aim, program: Program) -> None:
        self.case, self.aim, self.program = case, aim, program
        self.uses = program.uses
        self.is_ddp = aim.engine == "ddp"

    def definitions(self) -> list[str]:
        """The model, the helpers, ``build``."""
        case = self.case
        seed_of = bool(self.uses & {"seed_of", "ids"})
        found = [model_source(case), *([helpers.seed_source()] if seed_of else [])]
        found.append(helpers.values_source(case, seed_of=seed_of))
        sources = {
            "ids": helpers.IDS,
            "average": "def average(by_hand):\n" + textwrap.indent(helpers.AVERAGING.strip(), "    "),
            "backward": helpers.backward_source(roots=bool(self.program.sync.roots)),
            "parameter_groups": helpers.PARAMETER_GROUPS,
            "snapshot": helpers.PLAIN_SNAPSHOT if self.is_ddp else helpers.SNAPSHOT,
            "describe": helpers.DESCRIBE,
        }
        found += [source for name, source in sources.items() if name in self.uses]
        found.append(helpers.build_source(case, freeze_lines(case, "model", after_wrap=False)))
        return [source.strip() for source in found]

    def start(self) -> list[str]:
        """Joins the process group; making a mesh joins it too."""
        case = self.case
        wraps = bool(case.wrap) and not self.is_ddp
        limit = f", timeout=timedelta(seconds={DESYNC_SECONDS})" if self.aim.kind == "desync" else ""
        lines = [f'device = "cuda" if torch.cuda.device_count() >= {case.mesh.size} else "cpu"']
        if limit or not wraps:
            lines += [
                f'dist.init_process_group("nccl" if device == "cuda" else "gloo"{limit})',
                'if device == "cuda":',
                "    torch.cuda.set_device(dist.get_rank())",
            ]
        lines += [mesh_line(case)] if wraps else []
        lines.append("rank = dist.get_rank()")
        if "names" in self.uses:
            lines.append("names = [name for name, _ in Model().named_parameters()]")
        if "backward" in self.uses and (roots := self.program.sync.roots):
            lines += ["# The FSDP root of every parameter, as the number of a wrap group:"]
            lines += assignment("roots", roots)
        if "buffer_names" in self.uses:
            lines.append("buffer_names = [name for name, _ in Model().named_buffers()]")
        return lines

    def all_by_hand(self) -> str:
        """The gradients that the reference averages by hand: all."""
        return (
            "list(reference.parameters())"
            if self.program.sync.plain
            else self.program.parameters("reference")
        )

    def some_by_hand(self) -> str:
        """The gradients that the engine's model averages by hand: those that no group manages."""
        if not self.unmanaged():
            return "[]" if self.program.sync.plain else "{}"
        if self.program.sync.plain:
            return "[model.get_parameter(n) for n in unmanaged]"
        return "{n: model.get_parameter(n) for n in unmanaged}"

    def unmanaged(self) -> tuple[str, ...]:
        """The parameters that no ``fully_shard`` call manages."""
        owners = facts(self.case).owners
        return () if self.is_ddp else tuple(name for name, owner in owners.items() if owner is None)

    def build_lines(self) -> list[str]:
        """The engine's model, not yet wrapped by DDP."""
        lines = ["model = build()", *checkpoint_lines(self.case, "model", reference=False)]
        if self.is_ddp:
            return lines
        unmanaged = self.unmanaged() if self.program.by_hand else ()
        named = assignment("unmanaged", unmanaged) if unmanaged else []
        return lines + wrap_lines(self.case, "model") + named

    def main(self) -> str:
        """Everything that runs."""
        raise NotImplementedError


class _Compare(_Writer):
    """Trains the plain model, then the engine's, with one function, and compares what it returns."""

    def __init__(self, case: Case, aim: Aim) -> None:
        root = "inner" if aim.engine == "ddp" else "model"
        super().__init__(case, aim, Program(case, aim, called="model", model=root))
        if self.program.by_hand and not self.program.sync.plain and self.program.renamed:
            self.uses.add("names")

    def definitions(self) -> list[str]:
        lines = self.program.lines
        if any("inner" in line for line in lines):
            lines = ['inner = getattr(model, "module", model)', *lines]
        if self.aim.op is None:
            lines = [*lines, "return seen"]
        arguments = "model, by_hand" if self.program.by_hand else "model"
        body = "\n".join(f"    {line}" for line in lines)
        return [*super().definitions(), f"def train({arguments}):\n{body}"]

    def main(self) -> str:
        reference = checkpoint_lines(self.case, "reference", reference=True)
        model = ddp_expression("model") if self.is_ddp else "model"
        by_hand = self.program.by_hand
        lines = [
            *self.start(),
            "reference = build()",
            *reference,
            f"expected = train(reference{f', {self.all_by_hand()}' if by_hand else ''})",
            *self.build_lines(),
            f"observed = train({model}{f', {self.some_by_hand()}' if by_hand else ''})",
            *self.verdict(),
        ]
        return "\n".join(lines)

    def verdict(self) -> list[str]:
        """The comparison; with a bound, of the one tensor that it bounds."""
        tolerance = f"rtol=0, atol={self.aim.bound or 0}"
        comment = []
        if self.aim.bound is None:
            tolerance = "rtol=1e-4, atol=1e-5" if self.case.dtype == "float32" else "rtol=1e-9, atol=1e-9"
            comment = ["# The engines may add in another order; nobody has measured what that explains here."]
        elif self.aim.bound:
            comment = ["# atol is what rounding explains: from runs with another order of reduction."]
        only = [f"    if name != {self.aim.name!r}:", "        continue"] if self.aim.name else []
        whole = ["    got = got.full_tensor() if isinstance(got, DTensor) else got"]
        return [
            *comment,
            "for (name, want), got in zip(expected.items(), observed.values()):",
            *only,
            *(whole if "DTensor" in self.uses and not self.is_ddp else []),
            '    both = f"rank {rank}, {name}: expected\\n{want}\\nobserved\\n{got}\\n"',
            f"    torch.testing.assert_close(got, want, {tolerance}, equal_nan=True, msg=lambda m: both + m)",
            *helpers.END,
        ]


class _Alone(_Writer):
    """Runs the engine's model only: for what can be seen without a reference."""

    def __init__(self, case: Case, aim: Aim) -> None:
        super().__init__(
            case, aim, Program(case, aim, called="ddp" if aim.engine == "ddp" else "model", model="model")
        )
        self.uses |= {"registration": {"describe"}, "replicas": {"snapshot"}}.get(aim.kind, set())

    def main(self) -> str:
        lines = self.start()
        if self.aim.kind == "collectives":
            lines += ["", helpers.RECORD.strip(), ""]
        lines += self.build_lines()
        if self.is_ddp:
            lines.append(f"ddp = {ddp_expression('model')}")
        if self.program.by_hand:
            lines.append(f"by_hand = {self.some_by_hand()}")
        return "\n".join([*lines, *self.program.lines, *self.verdict()])

    def verdict(self) -> list[str]:
        """What is looked at in the end."""
        match self.aim.kind:
            case "registration":
                text = f"rank {{rank}}: {self.aim.name}: expected {{expected}}, observed {{observed}}"
                lines = [
                    f"expected = {self.aim.expected!r}",
                    f'observed = describe(model.get_parameter("{self.aim.name}"))',
                    f'assert observed == expected, f"{text}"',
                ]
            case "collectives":
                lines = [
                    "everyone = [None] * dist.get_world_size()",
                    "dist.all_gather_object(everyone, list(calls))",
                    'text = f"rank {rank}: expected {everyone[0]}\\nobserved {everyone[rank]}"',
                    "assert everyone[rank] == everyone[0], text",
                ]
            case "replicas":
                lines = [
                    "for name, p in params.items():",
                    "    observed = snapshot(p)",
                    "    expected = observed.clone()",
                    "    dist.broadcast(expected, 0)",
                    '    both = f"rank {rank}, {name}: rank 0 has\\n{expected}\\nobserved\\n{observed}\\n"',
                    "    torch.testing.assert_close(",
                    "        observed, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: both + m",
                    "    )",
                ]
            case "desync":
                lines = ["dist.barrier()"]
            case _:
                lines = []
        return [*lines, *helpers.END]
