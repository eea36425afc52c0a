"""``loss = model(batch)``."""

from __future__ import annotations

from typing import Self

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.dtypes import LOW_PRECISION, Dtype

_COPYING = (
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda copy: copy)"
)


class Forward(op.Op, tag="forward", frozen=True, kw_only=True):
    """Runs ``target`` on input batch ``batch`` and keeps the loss pending for a later backward.

    The same ``batch`` number means the same tensors. ``grad=False`` runs under
    ``torch.no_grad()``, or ``torch.inference_mode()`` with ``inference``, and leaves nothing
    pending. ``outputs`` are the indices of the outputs that enter the loss (None: all).

    ``autocast`` "should wrap only the forward pass(es) of your network, including the loss
    computation(s)" (torch/amp/autocast_mode.py). It casts float32 alone. With ``copies_saved`` the
    backward gets copies of what the forward saves for it, as where activations are offloaded ("a
    pair of pack / unpack hooks for saved tensors", ``torch.autograd.graph.saved_tensors_hooks``).
    """

    batch: int = 0
    target: str = ""
    grad: bool = True
    outputs: tuple[int, ...] | None = None
    inference: bool = False
    autocast: Dtype | None = None
    copies_saved: bool = False

    lane = "forward"
    looks = ("registered", "parameters", "buffers")
    meanings = {
        "schedule:no_grad_forward": "a forward under no_grad",
        "schedule:inference_forward": "a forward under inference_mode",
        "schedule:eval_forward": "a forward in eval mode",
        "schedule:non_root_forward": "a forward of a module below the root",
        "schedule:non_root_loss": "the same, with a backward",
        "schedule:non_root_first": "the same, before any forward of the root",
        "op:autocast": "a forward within torch.autocast",
        "op:copies_saved": "a forward within saved_tensors_hooks, which copy what it saves",
    }
    choices = (
        op.Choice("inference_forward", 12, 103, needs=("no_grad_forward",), of_stages=True),
        op.Choice("autocast", 8, 111, excludes=("other_dtypes",)),
        op.Choice("copies_saved", 6, 113),
    )

    @classmethod
    def of(cls, call: op.Call) -> Self:
        """Return the op that runs ``call``, without the context manager."""
        target, batch, grad, outputs, inference, _ = call
        return cls(target=target, batch=batch, grad=grad, outputs=outputs, inference=inference)

    @classmethod
    def drawn_as(cls, call: op.Call, run: op.Run) -> Self:
        """Return the op that runs ``call``, in a way that is drawn."""
        made = cls.of(call)
        if made.grad and run.allows("copies_saved", 60):
            made = replace(made, copies_saved=True)
        lowered = replace(made, autocast="bfloat16")  # gradients overflow in float16
        fits = run.allows("autocast", 60) and run.at.why_not(lowered) is None
        return lowered if fits else made

    @property
    def _lowers(self) -> bool:
        """Whether autocast casts something: that to a dtype of full precision does nothing."""
        return self.autocast in LOW_PRECISION

    @property
    @override
    def call(self) -> op.Call:
        contexts = [f"torch.autocast(device, torch.{self.autocast})"] if self._lowers else []
        contexts += [_COPYING] if self.copies_saved else []
        context = ", ".join(contexts)
        return op.Call(self.target, self.batch, self.grad, self.outputs, self.inference, context)

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.forward(self.call)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.call_misfits(self.call)
        if self.grad and not at.grad_enabled:
            yield (
                "a forward that has a backward runs while gradients are disabled",
                "use grad=False",
            )
        if self.grad and self.inference:
            yield "inference_mode records no gradients", "use grad=False"
        if self.copies_saved and not self.grad:
            yield "a forward without gradients saves nothing", "use copies_saved=False"
        if self._lowers:
            yield from self._autocast_misfits(at)
        outputs = len(at.found.output_values[self.target])
        if self.outputs is not None and (
            not self.outputs or any(not 0 <= i < outputs for i in self.outputs)
        ):
            yield (f"forward uses outputs {self.outputs} of {outputs}", "use indices that exist")

    def _autocast_misfits(self, at: op.Checker) -> op.Reasons:
        """Yield why autocast casts nothing, or gets what it should not: "You should not call
        half() or bfloat16() on your model(s) or inputs when using autocasting" (torch.autocast).
        """
        if (at.cast or at.case.dtype) != "float32":
            yield "autocast casts float32 alone", "use autocast=None"
        policies = (at.case.fsdp1.precision, *(group.precision for group in at.case.wrap))
        named = {dtype for policy in policies if policy for dtype in policy.dtypes}
        if named.intersection(LOW_PRECISION):
            yield (
                "autocast is for modules, inputs and outputs in full precision",
                "use autocast=None, or full dtypes for mixed precision",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        if not self.grad:
            yield f"schedule:{'inference' if self.inference else 'no_grad'}_forward"
        if self._lowers:
            yield "op:autocast"
        if self.copies_saved:
            yield "op:copies_saved"
        if not at.training:
            yield "schedule:eval_forward"
        if self.target:
            yield "schedule:non_root_forward"
            if self.grad:
                yield "schedule:non_root_loss"
            if not at.has_run:
                yield "schedule:non_root_first"

    @override
    def statement(self, index: int, *losses: int) -> str:
        outputs = (
            "" if self.outputs is None else f"outputs {', '.join(map(str, self.outputs))} of "
        )
        how = " under autocast" * self._lowers + ", saving copies" * self.copies_saved
        loss = f"loss({outputs}{op.expression(self.target)}(batch {self.batch})){how}"
        return f"loss{index} = {loss}" if self.grad else f"with {self.call.mode}: {loss}"

    @override
    def noun(self, *, no_sync: bool = False) -> str:
        return super().noun() if self.grad else f"{super().noun()} under {self.call.mode}"

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        trainer.forward(index, self, self.call)

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.forward(self.call)
