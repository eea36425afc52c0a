"""What becomes of gradients before a step: clipping, ``GradScaler.unscale_()``, an overflow."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import UNSHARDED, Moment, Never
from fuzzshard.parts.ops.step import Step
from fuzzshard.parts.statements import indented

_NORMS: tuple[tuple[float | Literal["inf"], int], ...] = ((2.0, 11), (1.0, 5), ("inf", 4))


class ClipGradNorm(op.Op, tag="clip_grad_norm", frozen=True, kw_only=True):
    """``clip_grad_norm_`` over all parameters; FSDP1 has a method of its own for it.

    ``norm_type`` "can be ``'inf'`` for infinity norm" (torch/nn/utils/clip_grad.py). "If True, an
    error is thrown if the total norm of the gradients ... is ``nan``, ``inf``, or ``-inf``": the
    program catches it and makes zeros of the gradients, so that what follows shows on which ranks
    it came. FSDP1 has no such argument: the program looks at the norm.

    With ``apart`` ``get_total_norm`` comes first, and ``clip_grads_with_norm_`` with the whole
    norm then, as in torchtitan/distributed/utils.py (``clip_grad_norm_``). ``foreach`` is that of
    torch's functions.
    """

    max_norm: float
    norm_type: float | Literal["inf"] = 2.0
    error_if_nonfinite: bool = False
    apart: bool = False
    foreach: bool | None = None

    says = "clip_grad_norm_({op.max_norm}, norm_type={op.norm_type!r}{op.told})"
    lane = "optimizer"
    uses_gradients = wants_sharded = True
    looks = ("norm", "gradients")
    never = {"forward_to_backward": UNSHARDED}
    sources = """
def clip_grad_norm_of_stages(
    parameters, max_norm, norm_type, group, error_if_nonfinite=False, foreach=None
):
    parameters = [*parameters]
    grads = [p.grad for p in parameters if p.grad is not None]
    total = unsharded(torch.nn.utils.get_total_norm(grads, norm_type, foreach=foreach))
    total = total.to(device, torch.float64)
    if norm_type == "inf":
        dist.all_reduce(total, dist.ReduceOp.MAX, group)
    else:
        total **= norm_type
        dist.all_reduce(total, dist.ReduceOp.SUM, group)
        total **= 1 / norm_type
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError("the norm is non-finite")
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total
"""
    meanings = {
        "op:clip": "clip_grad_norm_",
        "op:clip_by_largest": "clip_grad_norm_ with the infinity norm",
        "op:clip_finite": "clip_grad_norm_ with error_if_nonfinite",
        "op:clip_apart": "get_total_norm, then clip_grads_with_norm_",
        "op:clip_foreach": "clip_grad_norm_ with foreach=True",
        "op:clip_no_foreach": "clip_grad_norm_ with foreach=False",
    }
    choices = (op.Choice("clip", 18, 4, of_stages=True),)
    comes = ("before_step",), 75

    @property
    def told(self) -> str:
        """Return what else a program says."""
        said = {"error_if_nonfinite": self.error_if_nonfinite, "apart": self.apart}
        flags = "".join(f", {name}=True" for name, value in said.items() if value)
        return flags if self.foreach is None else f"{flags}, foreach={self.foreach}"

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if min(self.max_norm, float(self.norm_type)) <= 0:
            yield "a norm is not positive", "use a positive number"

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:clip"
        if self.norm_type == "inf":
            yield "op:clip_by_largest"
        if self.error_if_nonfinite:
            yield "op:clip_finite"
        if self.apart:
            yield "op:clip_apart"
        if self.foreach is not None:
            yield "op:clip_foreach" if self.foreach else "op:clip_no_foreach"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        """Clip by the engine's own method, if it has one, or by torch's functions; stages, each of
        which has norms of its own, as torchtitan does (torchtitan/distributed/utils.py,
        ``clip_grad_norm_``). Gradients that are to be finite and are not become zeros, on every
        rank.
        """
        trained, in_lists = scope.trained, self._in_lists(scope)
        arguments, finite = f"{self.max_norm}, {self.norm_type!r}", self.error_if_nonfinite
        told = f"{trained}, {arguments}{', error_if_nonfinite=True' * finite}"
        plain = [f"norm = torch.nn.utils.clip_grad_norm_({told}{in_lists})"]
        if self.apart:
            plain = self._lines_apart(trained, in_lists)
        if scope.engine.in_stages:
            group = 'world_mesh["pp"].get_group()'
            of_stages = f"norm = clip_grad_norm_of_stages({told}, group={group}{in_lists})"
            plain = scope.either(plain, [of_stages])
        zeros = [f"for p in {trained}:", "    if p.grad is not None:", "        p.grad.zero_()"]
        zeros = ["norm = None", *zeros]
        own = scope.script.clip_line(scope.called, arguments)
        its = [f"norm = {own}"] if own else []
        if finite:
            other = ['if "non-finite" not in str(error):', "    raise"]
            handled = ["except RuntimeError as error:", *indented([*other, *zeros])]
            plain = ["try:", *indented(plain), *handled]
            its += ["if not norm.isfinite():", *indented(zeros)] * bool(own)
        return scope.for_wrapper(its or plain, plain)

    def _in_lists(self, scope: op.Scope) -> str:
        """Return an argument ``foreach``; the reference goes the other way, so that what either
        way does wrong itself shows.
        """
        if self.foreach is None:
            return ""
        if scope.shared:
            return f", foreach={scope.called} is {'not ' * self.foreach}reference"
        return f", foreach={self.foreach is not scope.is_reference}"

    def _lines_apart(self, trained: str, in_lists: str) -> list[str]:
        """Take the norm of what is ``trained``, and clip with it."""
        finite = ", error_if_nonfinite=True" * self.error_if_nonfinite
        return [
            f"grads = [p.grad for p in {trained} if p.grad is not None]",
            f"norm = torch.nn.utils.get_total_norm(grads, {self.norm_type!r}{finite}{in_lists})",
            "norm = unsharded(norm)",
            f"torch.nn.utils.clip_grads_with_norm_({trained}, {self.max_norm}, norm{in_lists})",
        ]

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        """Most often where FSDP1 adds up the norms of units that are sharded and of others."""
        if run.restore:
            return
        if run.case.fsdp1.strategy == "mixed" and moment in cls.comes[0] and run.tape.chance(60):
            run.add(*cls.drawn(run))
        else:
            super().draw(run, moment)

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        norm_type = run.tape.weighted(_NORMS)
        largest = run.tape.pick((1.0, 0.25, 0.03125, 8.0))
        overflows = run.case.optimizer.grad_scaler
        finite = run.tape.chance(70 if overflows else 20)
        apart = run.tape.chance(25)
        return (
            cls(
                max_norm=largest,
                norm_type=norm_type,
                error_if_nonfinite=finite,
                apart=apart,
                foreach=run.tape.pick((None, True, False)) if run.tape.chance(45) else None,
            ),
        )


class ClipGradValue(op.Op, tag="clip_grad_value", frozen=True, kw_only=True):
    """``clip_grad_value_`` over all parameters. It is elementwise, so a shard needs no other."""

    clip_value: float

    says = "clip_grad_value_({op.clip_value})"
    lane = "optimizer"
    uses_gradients = wants_sharded = True
    looks = ("gradients",)
    never = {"forward_to_backward": UNSHARDED}
    meanings = {"op:clip_value": "clip_grad_value_"}
    choices = (op.Choice("clip_value", 12, 101, of_stages=True),)
    comes = ("before_step",), 75

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if self.clip_value <= 0:
            yield "a gradient is clipped to no range", "use a positive number"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return [
            f"if any(p.grad is not None for p in {scope.trained}):  # torch raises elsewhere",
            f"    torch.nn.utils.clip_grad_value_({scope.trained}, {self.clip_value})",
        ]

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if not run.restore:
            super().draw(run, moment)

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        return (cls(clip_value=run.tape.pick((0.5, 0.125, 2.0))),)


_ACCUMULATED = Never(
    "should only be called once per optimizer per :meth:`step` call, and only after all gradients "
    "for that optimizer's assigned parameters have been accumulated",
    "torch.amp.GradScaler.unscale_",
)


class Overflow(op.Op, tag="overflow", frozen=True, kw_only=True):
    """One element of a gradient is infinite, as where a backward overflows, which only a rank that
    has it can see. The first gradient and the last one may be sharded otherwise.
    """

    last: bool = False

    says = "overflow(parameters, {op.which})"
    lane = "optimizer"
    uses_gradients = wants_sharded = True
    looks = ("gradients",)
    never = {"forward_to_backward": UNSHARDED}
    sources = """
def overflow(parameters, which):  # in one element, which one rank has of a sharded gradient
    grad = [p.grad for p in parameters if p.grad is not None][which]
    local, first = grad, True
    if isinstance(grad, DTensor):
        local, where = grad.to_local(), grad.device_mesh.get_coordinate()
        first = not any(n for n, p in zip(where, grad.placements) if not p.is_replicate())
    if first:
        local[(0,) * local.ndim] = float("inf")
"""
    meanings = {"op:overflow": "a gradient is infinite in one element, which one rank may have"}

    @property
    def which(self) -> int:
        """Return the index of the gradient."""
        return -1 if self.last else 0

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.scaling_misfits()
        if not at.case.optimizer.grad_scaler or at.unscaled:
            yield "nothing skips a step with what is infinite", "give the optimizer a grad_scaler"
        if at.may_fill_gradients:
            yield (
                "a parameter without a gradient may get one of zeros, which is the first then",
                "let a backward reach every parameter that is trained",
            )

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        plain = [f"overflow({scope.trained}, {self.which})"]
        own = scope.script.overflow_lines(scope.case, scope.called, scope.trained, self.which)
        return scope.for_wrapper(own or plain, plain)

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        finite = run.case.optimizer.grad_scaler == "finite"  # else everything overflows at first
        steps = moment == "before_step" and run.at.why_not(Step()) is None
        if finite and steps and run.tape.chance(50):
            run.add(cls(last=run.tape.chance(50)))


class Unscale(op.Op, tag="unscale", frozen=True, kw_only=True):
    """``GradScaler.unscale_()`` before a step, which does not do it again then: "to modify or
    inspect gradients between the backward pass(es) and :meth:`step`".
    """

    says = "scaler.unscale_(optimizer)"
    lane = "optimizer"
    uses_gradients = wants_sharded = of_optimizer = True
    looks = ("gradients",)
    never = {
        "before_first_forward": _ACCUMULATED,
        "forward_to_backward": UNSHARDED,
        "between_microbatches": _ACCUMULATED,
        "after_step": _ACCUMULATED,
    }
    meanings = {"op:unscale": "GradScaler.unscale_ before a step"}

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.unscaled = True

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.scaling_misfits()
        if not at.case.optimizer.grad_scaler:
            yield "there is no scale", "give the optimizer a grad_scaler"
        if at.unscaled or not at.backwards:
            yield ("gradients have no scale any more", "put a backward before it, and no step")

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return [f"scaler.unscale_({name})" for name in scope.case.optimizer.each]

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        scales = run.case.optimizer.grad_scaler
        steps = moment == "before_step" and run.at.why_not(Step()) is None
        if scales and steps and run.tape.chance(50):
            run.add(cls())

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls(),) if run.case.optimizer.grad_scaler else ()
