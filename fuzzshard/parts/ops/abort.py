"""An iteration that an exception ends, and ``reset_iter_state()``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import Never
from fuzzshard.parts.statements import indented


class Abort(op.Op, tag="abort", frozen=True, kw_only=True):
    """An iteration on batch ``batch`` that ends with an exception of ``target``, and the recovery.

    It is raised when the module is called, or in the backward of all outputs when the gradient of
    what the module has returned arrives. Then ``reset_iter_state()`` is called on the root, and
    ``zero_grad()``.
    """

    target: str
    batch: int = 0
    during: Literal["forward", "backward"] = "forward"

    says = "{at} raises in the {op.during} of batch {op.batch}; model.reset_iter_state()"
    aborts = True
    never = {
        "forward_to_backward": Never(
            "1. Catch the exception from forward() or backward(). 2. Call reset_iter_state() on "
            "the root FSDP module. 3. Run the next iteration normally. [...] the failed "
            "iteration's gradients are lost",
            "torch/distributed/fsdp/_fully_shard/_fully_shard.py, reset_iter_state",
        ),
        "backward_to_step": Never("an iteration that runs here is another microbatch"),
        "under_no_grad": Never("an iteration has a backward"),
    }
    looks = ("registered", "buffers", "unreduced")
    sources = """
def interrupt(*args):  # as a user's code may raise in the middle of an iteration
    raise InterruptedError

def interrupt_backward(module, args, output):
    if isinstance(output, torch.Tensor) and output.requires_grad:
        output.register_hook(interrupt)
"""
    meanings = {
        "op:abort_forward": "a forward that ends with an exception, and reset_iter_state()",
        "op:abort_backward": "a backward that ends with an exception, and reset_iter_state()",
        "op:abort_unsynced": "the same while gradients wait for their reduction",
    }
    choices = (op.Choice("abort", 10, 100, new=True, brings=("microbatches", "no_sync")),)
    comes = ("step_begins", "between_rounds"), 50

    @property
    @override
    def begins(self) -> op.Call:
        return op.Call(batch=self.batch)

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.abort(self.begins)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        """``reset_iter_state`` is for the FSDP root, and what it resets for a whole iteration."""
        if not at.case.root_is_wrapped:
            yield "an iteration is aborted and the root is not wrapped", "wrap it"
        if at.pending:
            yield "an iteration is aborted while a forward is pending", "move the op"
        if not at.grad_enabled:
            yield "an iteration runs while gradients are disabled", "move the op"
        if at.case.checkpoints or at.case.compile is not None:
            yield (
                "an iteration is aborted under activation checkpointing or compile()",
                "neither says that it can go on after an exception: remove one of the two",
            )
        if at.stepped:
            yield (
                "an optimizer in the backward and an aborted backward cannot be combined: it is "
                "undefined which parameters were stepped",
                "leave one of the two out",
            )
        if self.target not in at.found.called & at.found.leaves.keys():
            yield (f"{self.target!r} is no module that the forward calls to compute", "name one")

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"op:abort_{self.during}"
        if at.has_gradients and at.unsynced:
            yield "op:abort_unsynced"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        """Run it until the module is called, or until the gradient of its output comes, and then
        what makes the next iteration possible.
        """
        in_backward = self.during == "backward"
        hook = "hook(interrupt_backward)" if in_backward else "pre_hook(interrupt)"
        root = op.Below(recurse=False)
        return [
            *scope.inputs_of(self.begins),
            f"handle = {scope.at(self.target)}.register_forward_{hook}",
            "try:",
            *indented(scope.aborted(self.begins, in_backward=in_backward)),
            "except InterruptedError:",
            "    pass",
            "handle.remove()",
            *scope.on_groups(root, lambda module: [f"{module}.reset_iter_state()"]),
            f"{scope.called}.zero_grad()",
        ]

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        engine, call = trainer.engine, self.begins
        trainer.iteration(index, self, call, before_backward=engine.before_backward)
        engine.recover()
        trainer.feed.forget(call)

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        found = run.model.found
        run.batch += 1
        during: Literal["forward", "backward"] = "backward" if run.tape.chance(60) else "forward"
        target = run.tape.pick(sorted(found.called & found.leaves.keys()))
        return (cls(target=target, batch=run.batch, during=during),)
