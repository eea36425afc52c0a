"""``requires_grad_()`` during training."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op

KEYS_DIFFER = (
    "a checkpoint of parameters that only some ranks freeze",
    "torch.distributed.checkpoint needs the same keys on every rank: freeze on all",
)
"""Why one schedule has not both."""
GOES_BY_BEFORE = (
    "requires_grad changes between a forward and its backward, which goes by that of before",
    "zeros_for_unused and no_backward_unshard do not say what then: move the op",
)
"""Why groups that are told so, then or later, have not both."""


class SetRequiresGrad(op.Op, tag="set_requires_grad", frozen=True, kw_only=True):
    """``requires_grad_(value)`` on a parameter, or on every parameter of a module.

    ``engines_only`` leaves the reference as it is, as an upstream test does by mistake.
    """

    target: str
    value: bool
    ranks: op.Ranks = "all"
    engines_only: bool = False

    wants_sharded = True
    says = "{others}{at}.requires_grad_({op.value})"
    looks = ("registered",)
    meanings = {
        "freeze:toggled_on": "requires_grad_(True) during training",
        "freeze:toggled_off": "requires_grad_(False) during training",
        "freeze:thawed": "what is frozen from the start, before wrapping, is unfrozen",
        "freeze:toggled_while_pending": "requires_grad_() between a forward and its backward",
        "freeze:toggled_off_with_gradients": "requires_grad_(False) while there are gradients",
        "freeze:toggled_off_unsynced": "requires_grad_(False) while gradients wait for their "
        "synchronisation",
        "freeze:engines_only": "requires_grad_ under the engines and not the reference",
    }

    @override
    def follow(self, at: op.ScheduleState) -> None:
        if self.engines_only and self.value and at.parameters_at(self.target) & at.frozen:
            at.engines_train_more = True
        at.set_requires_grad(self.target, self.value)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.target_misfits()
        yield from at.recomputed_misfits("requires_grad")
        if self.ranks != "all" and any(each.via in op.BY_NAME for each in at.ops):
            yield KEYS_DIFFER
        named = at.parameters_at(self.target)
        if at.pending and any(g.does("looks_at_unsharded") for g in at.wrap):
            yield GOES_BY_BEFORE
        if not self.value and at.pending and at.hooked & named:
            yield (
                f"{self.target!r} is frozen before a backward that would call a hook on what it "
                "accumulates",
                "torch calls the hook although nothing accumulates, which its documentation does "
                "not say: freeze it after the backward",
            )
        if self.value:
            thawed = (o for o in at.ops if isinstance(o, SetRequiresGrad) and o.value)
            yield from at.trains_several_dtypes(o.target for o in thawed)
        changed = named & at.frozen if self.value else named - at.frozen
        if self.engines_only and changed and at.case.observe != "losses":
            yield (
                f"engines and the reference do not train the same parameters at {self.target!r}",
                'observe="losses", which are all that is comparable then',
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "freeze:toggled_on" if self.value else "freeze:toggled_off"
        if self.value and at.are_frozen_at_construction(self.target):
            yield "freeze:thawed"
        if at.pending:
            yield "freeze:toggled_while_pending"
        elif at.has_gradients and not self.value and self.ranks == "all":
            yield "freeze:toggled_off_with_gradients"
        if at.unsynced and not self.value:
            yield "freeze:toggled_off_unsynced"
        if self.engines_only:
            yield "freeze:engines_only"

    @override
    def statement(self, index: int, *losses: int) -> str:
        return super().statement(index) + ("  # not of the reference" if self.engines_only else "")

    @override
    def noun(self, *, no_sync: bool = False) -> str:
        return f"requires_grad_({self.value}) of {self.target or 'the root'}"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        lines = scope.requires_grad_lines(self.target, self.value)
        return scope.unless_reference(lines) if self.engines_only else lines

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment in (*op.AMID_STEPS, "before_step") and (picked := run.pick_toggle()):
            run.add(cls(target=picked[0], value=picked[1]))
