"""``FullyShardedDataParallel`` (FSDP1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.op import Choice
from fuzzshard.parts.ops import HOOKED_CHOICES, NEW_CHOICES
from fuzzshard.parts.option import meanings_of
from fuzzshard.parts.options.fsdp1 import FSDP1_OPTIONS
from fuzzshard.parts.options.optimizer import choosing
from fuzzshard.parts.options.precision import Precision

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.facts import Facts


class FullyShardedDataParallel(EngineSpec):
    """Every wrapped module is a unit with one flat parameter, and so is the root."""

    name = "fsdp1"
    title = "`FullyShardedDataParallel`"
    tag = "FSDP1"
    meaning = "FSDP1 runs"
    options = "fsdp1"
    meanings = meanings_of(FSDP1_OPTIONS)
    choice = Choice(
        "fsdp1",
        23,
        place=1,
        # what it has nothing for, or has not documented: a case with it would run without it
        excludes=(
            *("list_group", "tensor", "meta", "compile", "other_dtypes", "method"),
            *NEW_CHOICES,
            *("non_root_forward", "partial_sync", "backward_order"),
            *(*choosing("scales"), *HOOKED_CHOICES),
        ),
    )
    wrapper = "FullyShardedDataParallel"
    keeps_order = True
    has_units = True
    differs_in = ("reduced", "local")
    wraps_models = "if asked"
    wraps_blocks = True
    outlives_run = (
        "two modules of six of the smallest model with two units do, on torch 2.13 as it is "
        "(measured without fuzzshard); why is not known"
    )

    @override
    def has_flat_parameters(self, case: Case) -> bool:
        return not case.fsdp1.does("has_originals")

    @override
    def policy(self, case: Case) -> Precision | None:
        return case.fsdp1.policy

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        for option, value in case.fsdp1.told():
            yield from option.features(value, case)

    @override
    def needs_cuda(self, case: Case) -> str | None:
        return case.fsdp1.needs_cuda()

    @override
    def check(self, case: Case, found: Facts) -> None:
        options, runs = case.fsdp1, self.name in case.engines
        policy = options.policy
        if policy is not None and policy.does("keeps_vectors"):
            raise InvalidCase(
                "FSDP1 has no param_dtype_override_fn", "remove keep from its precision"
            )
        if runs and policy is not None and any(group.policy is not None for group in case.wrap):
            raise InvalidCase(
                "both FSDP1 and wrap groups have mixed precision, and there is one reference",
                "keep one of the two",
            )
        if runs and options.does("hybrid") and case.mesh.replicate is None:
            raise InvalidCase(
                "a hybrid strategy of FSDP1 needs a replicate axis", "set mesh.replicate"
            )
