"""Scripts that train two models and compare them."""

from __future__ import annotations

import re

from typing_extensions import override

from fuzzshard.case.arrivals import ignored_modules
from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import has_precision
from fuzzshard.errors import UsageError
from fuzzshard.model.statements import indented
from fuzzshard.parts.engines import spec_of
from fuzzshard.program.script import script_of
from fuzzshard.program.setup import checkpoint_lines
from fuzzshard.reproducer import helpers
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.scope import UNWRAPPED, Scope
from fuzzshard.reproducer.values import model_lines, tolerance
from fuzzshard.reproducer.writer import Writer


class Compare(Writer):
    """Trains the plain model, then the engine's, with one function, and compares what it
    returns.
    """

    def __init__(self, case: Case, aim: Aim) -> None:
        spec = spec_of(aim.engine)
        root = "inner" if spec.wrapper else "model"
        called = script_of(aim.engine).variable if spec.in_stages else "model"
        super().__init__(case, aim, Scope(case, aim, called=called, model=root))
        if has_precision(case) and not aim.tolerant:
            raise UsageError(
                "no script emulates mixed precision on a plain model", "replay the case"
            )
        if ignored_modules(self.case, by_replicate=spec_of(aim.engine).ignores_modules):
            raise UsageError("no script averages what replicate() ignores", "replay the case")
        if aim.op is not None and not any(
            line.lstrip().startswith("return ") for line in self.lines
        ):
            raise UsageError(f"op {aim.op} has nothing of this kind to look at", "replay the case")

    @override
    def functions(self) -> list[str]:
        """The function that trains."""
        lines = self.lines
        if self.scope.model == "inner" and any(re.search(r"\binner\b", line) for line in lines):
            lines = [UNWRAPPED, *lines]
        if self.scope.rebuilds:
            lines = ["global reference", *lines]
        if self.aim.op is None:
            lines = [*lines, "return seen"]
        return ["\n".join([f"def train({', '.join(self._given)}):", *indented(lines)])]

    @property
    def _given(self) -> tuple[str, ...]:
        """The variables of the model; all of them where they are made anew."""
        return self.scope.made if self.scope.rebuilds else self.scope.models

    @override
    def main(self) -> list[str]:
        case, is_copied = self.case, self.case.init != "meta" and not self.scope.rebuilds
        copied = ["model = copy.deepcopy(reference)"] if is_copied else []
        return [
            *model_lines(case, "reference", self.aim.seed),
            *copied,
            *checkpoint_lines(case, "reference", reference=True),
            f"expected = train({', '.join(['reference'] * len(self._given))})",
            *self.built([] if is_copied else None),
            *(self._here() if self.scope.engine.in_stages else []),
            f"observed = train({', '.join(self._given)})",
            *(self._one() if self.aim.op is not None else self._everything()),
            *helpers.END,
        ]

    def _here(self) -> list[str]:
        """Name the parameters of this rank's stages."""
        wrapped = any(c.implementation == "wrapper" for c in self.case.checkpoints)
        name = 'name.replace("_checkpoint_wrapped_module.", "")' if wrapped else "name"
        if self.case.pipelining.does("wraps_stages"):
            name += '.removeprefix("module.")'
        return [f"here = {{{name} for s in stages for name, _ in s.submod.named_parameters()}}"]

    def _everything(self) -> list[str]:
        """Compare all tensors that were kept."""
        only = []
        if self.scope.engine.in_stages:
            only = ["    if name.split()[-1] not in here:", "        continue"]
        return [
            "# Engines may add in another order; nobody has measured what that explains here.",
            "for (name, want), got in zip(expected.items(), observed.values()):",
            *only,
            '    both = f"rank {rank}, {name}: expected\\n{want}\\nobserved\\n{got}\\n"',
            f"    torch.testing.assert_close(got, want, {tolerance(self.case, self.aim)}, "
            "equal_nan=True, msg=lambda m: both + m)",
        ]

    def _one(self) -> list[str]:
        """Compare the one tensor that the functions that train return."""
        case, aim = self.case, self.aim
        tolerances = tolerance(case, aim)
        comment = ["# A difference of up to atol could be rounding: sums in another order."]
        lines = []
        if self.scope.engine.has_dtensors and (
            case.tensor_parallel or not aim.oracles[0].of_forward
        ):
            offloads = any(group.does("offloads") for group in case.wrap)
            full = f"observed{'.to(device)' if offloads else ''}.full_tensor()"
            lines += ["if isinstance(observed, DTensor):", f"    observed = {full}"]
        dtypes = ", check_dtype=False" if has_precision(case) else ""
        lines += [
            f'both = f"rank {{rank}}, {aim.name}: '
            f'expected\\n{{expected}}\\nobserved\\n{{observed}}\\n"',
            *(comment if tolerances[-6:] != "atol=0" else []),
            f"torch.testing.assert_close(observed, expected, {tolerances}{dtypes}, "
            "msg=lambda m: both + m)",
        ]
        if self.scope.engine.in_stages:
            return [f'if "{aim.name.split()[-1]}" in here:', *indented(lines)]
        return lines
