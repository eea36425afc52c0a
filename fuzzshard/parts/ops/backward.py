"""``loss.backward()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import Never

_NO_LOSS = Never("no forward is pending, so there is no loss")


class Backward(op.Op, tag="backward", frozen=True, kw_only=True):
    """Calls ``backward`` on the sum of all pending losses, or only on the oldest or newest one.

    With ``retain_graph`` they stay pending: another backward goes through the same graph.
    ``outputs`` are the indices of outputs of the last forward, which is the only one that it takes
    then: they have a loss of their own.
    """

    which: op.Which = "all"
    retain_graph: bool = False
    outputs: tuple[int, ...] | None = None

    lane = "backward"
    never = {
        "before_first_forward": _NO_LOSS,
        "between_microbatches": _NO_LOSS,
        "backward_to_step": _NO_LOSS,
        "after_step": _NO_LOSS,
        "after_load": _NO_LOSS,
    }
    looks = ("registered", "inputs", "gradients", "unreduced")
    meanings = {
        "reuse:two_forwards": "a backward while two forwards are pending",
        "schedule:backward_oldest": "a backward of the oldest of several pending losses",
        "schedule:backward_newest": "a backward of the newest of several pending losses",
        "schedule:backward_late": "a backward of a forward that another backward came after",
        "schedule:microbatches": "two backwards before one step",
        "schedule:no_zero_grad": "a backward after a step with no zero_grad between them",
        "schedule:no_sync": "a backward that synchronises no group",
        "schedule:partial_sync": "a backward that synchronises some groups only",
        "schedule:sync_switched": "a backward that synchronises otherwise than was set in its "
        "forward",
        "schedule:no_all_reduce": "a backward with requires_all_reduce off somewhere",
        "schedule:not_last_backward": "a backward with is_last_backward off",
        "schedule:no_reshard": "a backward with reshard_after_backward off",
        "schedule:retain_graph": "a backward after which another one takes the same losses",
        "schedule:several_losses": "a backward of the loss of some outputs, before another one",
    }
    choices = (op.Choice("retain_graph", 11, 106),)

    @property
    @override
    def takes(self) -> op.Taking:
        return op.Taking(self.which, self.retain_graph, self.outputs)

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.backward(self.takes)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if not at.pending:
            yield "a backward has no pending forward", "put a forward before it"
        if self.retain_graph and at.case.compile is not None:
            yield (
                "a backward that was compiled keeps no graph: it "
                '"requires create_graph=False and retain_graph=False" (torch/_functorch)',
                "leave out compile, or retain_graph",
            )
        if at.unscaled:
            yield (
                "a backward adds gradients with a scale to some without",
                "unscale after it, and zero gradients after a step",
            )
        if self.outputs is not None:
            yield from self._output_misfits(at)
        if at.stepped:
            yield from self._stepping_misfits(at)
        if at.case.finalize is not None:
            yield from self._finalizing_misfits(at)
        is_computed = (
            len(at.taken) > 1 or self.outputs is not None or at.case.optimizer.grad_scaler
        )
        if is_computed and not at.grad_enabled:
            yield (
                "losses are computed or scaled while gradients are disabled: the result has none",
                "enable gradients before",
            )

    def _is_last(self, at: op.Checker) -> bool:
        """Return whether no forward is pending after it."""
        return not self.retain_graph and len(at.forwards_taken) == len(at.pending)

    def _stepping_misfits(self, at: op.Checker) -> op.Reasons:
        """A step is for sharded parameters that no graph needs any more, as any other is."""
        if not self._is_last(at):
            yield (
                "parameters change within a backward, and another one needs them",
                "autograd refuses parameters that were changed in place: run it first",
            )
        if at.off["reshard_after_backward"] or at.unfinished_after_backward():
            yield (
                "parameters change within a backward that leaves them unsharded, or its reduction "
                "unfinished",
                "let backwards reshard and finish",
            )

    def _finalizing_misfits(self, at: op.Checker) -> op.Reasons:
        """What ``finalize_backward`` is not for (its docstring in
        torch/distributed/fsdp/_fully_shard/_fully_shard.py).
        """
        if not self._is_last(at):
            yield '"Do not call it between forward and backward"', "leave no forward pending"
        if at.off["requires_all_reduce"] and at.case.mesh.replicate is not None:
            yield (
                '"Partial gradient reduction for replicate() and HSDP is not supported"',
                "remove the flag",
            )

    def _output_misfits(self, at: op.Checker) -> op.Reasons:
        *others, last = at.forwards_taken
        since = at.ops[last.place + 1 :]
        if others or any(op.begins for op in since):
            yield (
                "a backward of some outputs is not of the last forward alone",
                "move it behind that forward, or leave out its outputs",
            )
        used = last.call.used(len(at.found.output_values[last.call.target]))
        if not self.outputs or not set(self.outputs) <= set(used):
            yield (
                f"a backward is of outputs {self.outputs}, and its forward uses {tuple(used)}",
                "use outputs of that forward",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        if len(at.pending) > 1:
            yield "reuse:two_forwards"
            if self.which != "all":
                yield f"schedule:backward_{self.which}"
        last = max((i for i, op in enumerate(at.schedule[: at.index]) if op.takes), default=-1)
        if any(each.place < last for each in at.taken):
            yield "schedule:backward_late"
        if at.backwards:
            yield "schedule:microbatches"
        if not at.zeroed:
            yield "schedule:no_zero_grad"
        if silent := at.off["requires_gradient_sync"]:
            yield "schedule:no_sync" if silent == at.modules else "schedule:partial_sync"
        if any(each.synced != at.synced for each in at.pending):
            yield "schedule:sync_switched"
        if at.off["requires_all_reduce"]:
            yield "schedule:no_all_reduce"
        if at.off["is_last_backward"]:
            yield "schedule:not_last_backward"
        if at.off["reshard_after_backward"]:
            yield "schedule:no_reshard"
        if self.retain_graph:
            yield f"schedule:{'retain_graph' if self.outputs is None else 'several_losses'}"

    @override
    def statement(self, index: int, *losses: int) -> str:
        taken = " + ".join(f"loss{forward}" for forward in losses)
        taken = taken if len(losses) == 1 else f"({taken})"
        if self.outputs is not None:
            taken = f"loss(outputs {', '.join(map(str, self.outputs))} of op {losses[0]})"
        return f"{taken}.backward({'retain_graph=True' if self.retain_graph else ''})"

    @override
    def run(self, trainer: op.Trainer, index: int) -> bool:
        return trainer.backward(index, self, self.takes)

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.backward(self.takes)
