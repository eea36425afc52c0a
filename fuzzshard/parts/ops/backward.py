"""``loss.backward()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op
from fuzzshard.parts.moments import Never

_NO_LOSS = Never("no forward is pending, so there is no loss")


class Backward(op.Op, tag="backward", frozen=True, kw_only=True):
    """Calls ``backward`` on the sum of all pending losses, or only on the oldest or newest one.

    With ``retain_graph`` they stay pending: another backward goes through the same graph.
    """

    which: op.Which = "all"
    retain_graph: bool = False

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
        "schedule:microbatches": "two backwards before one step",
        "schedule:no_sync": "a backward that synchronises no group",
        "schedule:partial_sync": "a backward that synchronises some groups only",
        "schedule:no_all_reduce": "a backward with requires_all_reduce off somewhere",
        "schedule:not_last_backward": "a backward with is_last_backward off",
        "schedule:no_reshard": "a backward with reshard_after_backward off",
        "schedule:retain_graph": "a backward after which another one takes the same losses",
    }
    choices = (op.Choice("retain_graph", 8, 106, excludes=("compile",)),)

    @property
    @override
    def takes(self) -> op.Which:
        return self.which

    @property
    @override
    def retains(self) -> bool:
        return self.retain_graph

    @override
    def check(self, at: op.Checked) -> None:
        if not at.pending:
            raise InvalidCase("a backward has no pending forward", "put a forward before it")
        if self.retain_graph and at.case.compile is not None:
            raise InvalidCase(
                "a backward that was compiled keeps no graph: it "
                '"requires create_graph=False and retain_graph=False" (torch/_functorch)',
                "leave out compile, or retain_graph",
            )
        if at.unscaled:
            raise InvalidCase(
                "a backward adds gradients with a scale to some without", "unscale after it"
            )
        is_computed = len(at.taken) > 1 or at.case.optimizer.does("scales")
        if is_computed and not at.grad_enabled:
            raise InvalidCase(
                "losses are added up or scaled while gradients are disabled: the result has none",
                "enable gradients before",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        if len(at.pending) > 1:
            yield "reuse:two_forwards"
            if self.which != "all":
                yield f"schedule:backward_{self.which}"
        if at.backwards:
            yield "schedule:microbatches"
        if silent := at.off["requires_gradient_sync"]:
            yield "schedule:no_sync" if silent == at.modules else "schedule:partial_sync"
        if at.off["requires_all_reduce"]:
            yield "schedule:no_all_reduce"
        if at.off["is_last_backward"]:
            yield "schedule:not_last_backward"
        if at.off["reshard_after_backward"]:
            yield "schedule:no_reshard"
        if self.retain_graph:
            yield "schedule:retain_graph"

    @override
    def statement(self, index: int, *losses: int) -> str:
        taken = " + ".join(f"loss{forward}" for forward in losses)
        taken = taken if len(losses) == 1 else f"({taken})"
        return f"{taken}.backward({'retain_graph=True' if self.retain_graph else ''})"

    @override
    def run(self, trainer: op.Trainer, index: int) -> bool:
        return trainer.backward(index, self.which, retains=self.retain_graph)

    @override
    def lines(self, program: op.Program, index: int) -> list[str]:
        return program.backwards.lines(index, stops=program.stops_at(index))

    @override
    def mended(self, names: op.Names) -> op.Op | None:
        if not names.pending:
            return None
        if not self.retain_graph:
            names.pending = 0 if self.which == "all" else names.pending - 1
        return self
