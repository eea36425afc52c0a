"""Scripts that train two models and compare them."""

from __future__ import annotations

import dataclasses
import re

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.case.arrivals import ignored_modules
from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import has_precision
from fuzzshard.case.losses import microbatches
from fuzzshard.errors import UsageError
from fuzzshard.model.statements import indented
from fuzzshard.parts.engines import spec_of
from fuzzshard.program.script import script_of
from fuzzshard.program.setup import checkpoint_lines
from fuzzshard.program.wrapping import around_lines, build_call, engine_lines
from fuzzshard.reproducer import helpers
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.program import UNWRAPPED, Program
from fuzzshard.reproducer.seeded import model_lines, seed_line, tolerance
from fuzzshard.reproducer.writer import Writer


class Compare(Writer):
    """Trains the plain model, then the engine's, with one function, and compares what it
    returns.
    """

    def __init__(self, case: Case, aim: Aim) -> None:
        spec = spec_of(aim.engine)
        root = "inner" if spec.wrapper else "model"
        called = script_of(aim.engine).variable if spec.in_stages else "model"
        super().__init__(case, aim, Program(case, aim, called=called, model=root))
        if has_precision(case) and not aim.tolerant:
            raise UsageError(
                "no script emulates mixed precision on a plain model", "replay the case"
            )
        if case.tensor_parallel and aim.has("waiting"):
            raise UsageError(
                "no script knows the layout of an unreduced DTensor", "replay the case"
            )
        if ignored_modules(self.case, by_replicate=spec_of(aim.engine).ignores_modules):
            raise UsageError("no script averages what replicate() ignores", "replay the case")
        if aim.op is not None and not any(
            line.lstrip().startswith("return ") for line in self.program.lines
        ):
            raise UsageError(f"op {aim.op} has nothing of this kind to look at", "replay the case")

    @property
    def in_stages(self) -> bool:
        """Whether a rank trains some stages of the engine's model only."""
        return spec_of(self.aim.engine).in_stages

    @override
    def functions(self) -> list[str]:
        """The function that trains."""
        lines = self.program.lines
        if self.program.scope.model == "inner" and any(
            re.search(r"\binner\b", line) for line in lines
        ):
            lines = [UNWRAPPED, *lines]
        if self.program.rebuilds:
            lines = ["global reference", *lines]
        if self.aim.op is None:
            lines = [*lines, "return seen"]
        arguments = [*self._given, *(["by_hand"] if self.program.by_hand else [])]
        body = "\n".join(f"    {line}" for line in lines)
        return [f"def train({', '.join(arguments)}):\n{body}"]

    @property
    def _given(self) -> tuple[str, ...]:
        """The variables of the model; all of them where they are made anew."""
        return self.program.made if self.program.rebuilds else self.program.models

    @override
    def main(self) -> list[str]:
        around = around_lines(self.case, self.aim.engine, "model", "model")
        made = ["model = copy.deepcopy(reference)"] if self.aim.seeded else None
        rebuilds = self.program.rebuilds
        model = engine_lines(self.case, self.aim.engine, "model", seeds=rebuilds, made=made)
        model = [*(model[1:] if made else model), *around]
        return [
            *self.truth(made or []),
            *self.delays,
            *(self.made_anew(model, ", ".join(self.program.made)) if rebuilds else model),
            *(self._here() if self.in_stages else []),
            *self.unmanaged_lines(),
            f"observed = {self._train(', '.join(self._given), self.by_hand('model'))}",
            *self.verdict(),
        ]

    def _here(self) -> list[str]:
        """Name the parameters of this rank's stages."""
        wrapped = any(c.implementation == "wrapper" for c in self.case.checkpoints)
        name = 'name.replace("_checkpoint_wrapped_module.", "")' if wrapped else "name"
        if self.case.pipelining.does("wraps_stages"):
            name += '.removeprefix("module.")'
        return [f"here = {{{name} for s in stages for name, _ in s.submod.named_parameters()}}"]

    def truth(self, copied: list[str]) -> list[str]:
        """Trains what the engine is compared with: the reference averages all gradients by hand.

        ``copied`` are statements for after it is made and before it is trained.
        """
        plain = self.program.sync.plain
        everything = (
            "list(reference.parameters())" if plain else self.program.scope.parameters("reference")
        )
        return [
            *(
                model_lines(self.case, "reference")
                if copied
                else [f"reference = {build_call(self.case)}"]
            ),
            *copied,
            *checkpoint_lines(self.case, "reference", reference=True),
            f"expected = {self._train(', '.join(['reference'] * len(self._given)), everything)}",
        ]

    def _train(self, model: str, by_hand: str) -> str:
        return f"train({model}{f', {by_hand}' if self.program.by_hand else ''})"

    def verdict(self) -> list[str]:
        """The comparison; with a bound, of the one tensor that it bounds."""
        if self.aim.seeded:
            return self._seeded_verdict()
        tolerances = f"rtol=0, atol={tolerance(self.case, self.aim) if self.aim.bound else 0:g}"
        comment = []
        if self.aim.bound is None:
            tolerances = (
                "rtol=1e-4, atol=1e-5" if self.case.dtype == "float32" else "rtol=1e-9, atol=1e-9"
            )
            comment = [
                "# The engines may add in another order; nobody has measured what that explains "
                "here."
            ]
        elif self.aim.bound:
            comment = ["# atol is what rounding explains."]
        only = [f"    if name != {self.aim.name!r}:", "        continue"] if self.aim.name else []
        if self.in_stages:
            only += ["    if name.split()[-1] not in here:", "        continue"]
        offloads = any(group.does("offloads") for group in self.case.wrap)
        full = "got.to(device).full_tensor()" if offloads else "got.full_tensor()"
        whole = []
        if self.spec.has_dtensors and self.program.watch.may_be_parts:
            whole = [f"    got = {full} if isinstance(got, DTensor) else got"]
        return [
            *comment,
            "for (name, want), got in zip(expected.items(), observed.values()):",
            *only,
            *whole,
            '    both = f"rank {rank}, {name}: expected\\n{want}\\nobserved\\n{got}\\n"',
            f"    torch.testing.assert_close(got, want, {tolerances}, equal_nan=True, "
            "msg=lambda m: both + m)",
            *helpers.END,
        ]

    def _seeded_verdict(self) -> list[str]:
        """The comparison of one tensor, which the functions that train return, or a dict with
        it.
        """
        atol = tolerance(self.case, self.aim)
        tolerances = (
            f"rtol=0, atol={atol:g}{', check_dtype=False' if has_precision(self.case) else ''}"
        )
        comment = (
            ["# A difference of up to atol could be rounding: sums in another order."]
            if atol
            else []
        )
        lines, key = [], f'"{self.aim.name}"'
        if not self.program.watch.watched:
            lines.append(f"expected, observed = expected[{key}], observed[{key}]")
        is_local = self.aim.oracles[0].of_forward or self.aim.has("waiting")
        if self.spec.has_dtensors and (self.case.tensor_parallel or not is_local):
            offloads = any(group.does("offloads") for group in self.case.wrap)
            full = f"observed{'.to(device)' if offloads else ''}.full_tensor()"
            lines += ["if isinstance(observed, DTensor):", f"    observed = {full}"]
        lines += [
            f'both = f"rank {{rank}}, {self.aim.name}: '
            f'expected\\n{{expected}}\\nobserved\\n{{observed}}\\n"',
            *comment,
            f"torch.testing.assert_close(observed, expected, {tolerances}, msg=lambda m: both + "
            "m)",
        ]
        if self.in_stages:
            lines = [f'if "{self.aim.name.split()[-1]}" in here:', *indented(lines)]
        return [*lines, *helpers.END]


class Accumulate(Writer):
    """Trains the engine's model on all microbatches, and anew on each of them, with one
    function: for sums that wait for their reduction in low precision.

    No plain model computes in low precision as an engine does, so the engine is compared with
    itself: what a microbatch leaves when it is the only one is no sum yet, and the engine should
    add up just these.
    """

    def __init__(self, case: Case, aim: Aim) -> None:
        assert aim.op is not None
        ops = case.schedule[: aim.op + 1]
        self.count = microbatches(case, aim.op)
        first = len(ops) - 2 * self.count
        one = replace(case, schedule=(*ops[:first], replace(ops[first], batch=0), ops[first + 1]))
        aim = dataclasses.replace(aim, op=first + 1)
        super().__init__(one, aim, Program(one, aim, called="model", model="model"))
        self._left = self.program.scope.unreduced()

    @override
    def functions(self) -> list[str]:
        """The function that runs microbatches; each has data of its own."""
        lines = self.program.lines
        begins = lines.index(seed_line(self.case))
        seed = "batch" if self.case.inputs.same_on_ranks else "100 * batch + rank"
        body = [
            *engine_lines(
                self.case, self.aim.engine, "model", made=model_lines(self.case, "model")
            ),
            *lines[:begins],
            "for batch in batches:",
            *indented([f"torch.manual_seed({seed})", *lines[begins + 1 :]]),
            f"return {self._left}",
        ]
        return ["\n".join(["def accumulated(batches):", *indented(body)])]

    @override
    def main(self) -> list[str]:
        every, who = f"range({self.count})", f"rank {{rank}}, {self.aim.name}"
        return [
            *self.delays,
            f"expected = sum(accumulated([batch]) for batch in {every})",
            f"observed = accumulated({every})",
            f'both = f"{who}: expected\\n{{expected}}\\nobserved\\n{{observed}}\\n"',
            "torch.testing.assert_close(observed, expected, rtol=0, atol=0, msg=lambda m: "
            "both + m)",
            *helpers.END,
        ]
