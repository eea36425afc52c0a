"""Schedules: training runs as users write them, and the odd ones that are legal all the same.

A step is a few rounds of [flags, forward, backward], then ``step`` and ``zero_grad``. Between two
ops anything may happen that plain PyTorch allows too: a toggle of ``requires_grad``, an eval
forward, a forward of a submodule. Every pending loss has its backward before the step, because
autograd refuses a backward through parameters that were changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuzzshard.analysis.check_options import fits_options
from fuzzshard.analysis.checker import Checker
from fuzzshard.analysis.dtypes import has_precision
from fuzzshard.analysis.experts import shares_evenly
from fuzzshard.case.graph import count_paths
from fuzzshard.case.paths import is_within
from fuzzshard.parts import ops
from fuzzshard.parts.engines import specs
from fuzzshard.parts.op import Below, Call, Flag, Op, Switch, Which
from fuzzshard.parts.ops import OPS
from fuzzshard.parts.ops.set_flag import SYNC_FLAGS, drawn_off
from fuzzshard.strategies.freezing import below, pick_target
from fuzzshard.strategies.moments import with_calls
from fuzzshard.strategies.swarm import Swarm, may_cast
from fuzzshard.strategies.tape import Tape
from fuzzshard.strategies.trained_model import TrainedModel

FINAL_FORWARD = 40
"""How many schedules in a hundred end with a forward that nothing follows."""


def schedule(tape: Tape, swarm: Swarm, model: TrainedModel) -> tuple[Op, ...]:
    """Return one to four steps of one to three rounds each."""
    run = Run(tape, swarm, model)
    steps = tape.weighted(((2, 5), (3, 3), (4, 1))) if "several_steps" in swarm else 1
    run.between = [[] for _ in range(steps)]
    run.draw("between_steps")
    for index, between in enumerate(run.between):
        run.add(*between)
        if not index or tape.keeps():
            tape.within(run.step)
    return run.finished()


class Run:
    """A schedule under construction, which grows by what may come next."""

    def __init__(self, tape: Tape, swarm: Swarm, model: TrainedModel) -> None:
        self.tape, self.swarm, self.model = tape, swarm, model
        self.case = model.case
        self.at = Checker(self.case, model.found)
        """The state after the ops so far, which says what may come next."""
        self.between: list[list[Op]] = []
        """What comes before each step; those of a step are in one order."""
        self.wrapped = [module for group in model.case.wrap for module in group.modules]
        self.targets: list[str] = []
        if "non_root_forward" in swarm:
            self.targets = model.forward_targets(casts=may_cast(swarm))
        self.batch = 0
        self.paired = "two_forwards" in swarm and tape.chance(75)
        self.zeroing = tape.weighted((("after", 6), ("before", 2), ("between", 2)))
        """When gradients are zeroed: after a step, before the first forward of one, or between
        that and its backward.
        """
        self.toggles = tape.below(4) if "toggle" in swarm else 0
        self.started = tape.chance(4)
        """Whether a module below the root may be called: before the root's first forward, torch
        refuses.
        """
        self.restore: list[Switch] = []
        self.in_order = any(spec.has_units for spec in specs(model.case.engines))
        """Whether some engine wants no forward between a backward and the step, and may take one
        after the last step for another order of forwards than the first iteration's, and warn.
        """
        self.microbatches = 0
        """How many forwards every backward takes, where that has to be one number."""
        if any(spec.in_stages for spec in specs(model.case.engines)):
            self.microbatches = tape.weighted(((2, 5), (3, 2), (4, 3), (1, 1)))
        self.paths = count_paths(model.found.modules)

    def add(self, *ops: Op) -> bool:
        """Add those of ``ops`` that may come next, one after another; tell whether all may."""
        accepted = [self.at.accepts(op) for op in ops]
        return all(accepted)

    def accepted(self, schedule: Iterable[Op]) -> tuple[Op, ...] | None:
        """Return a schedule with the reshards that it lacks; None where some op may not come."""
        at = Checker(self.case, self.model.found)
        return tuple(at.ops) if all(at.accepts(op) for op in schedule) else None

    @property
    def ops(self) -> list[Op]:
        """The ops so far."""
        return self.at.ops

    @property
    def pending(self) -> int:
        """How many losses wait for a backward."""
        return len(self.at.pending)

    @property
    def trainable(self) -> frozenset[str]:
        """The parameters that require a gradient."""
        return frozenset(self.model.found.parameters) - self.at.frozen

    def allows(self, choice: str, percent: int) -> bool:
        """Return whether to do now what the swarm allows."""
        return choice in self.swarm and self.tape.chance(percent)

    def step(self) -> None:
        """Draw one optimizer step."""
        if self.zeroing == "before":
            self.draw("new_gradients")
        self.draw("step_begins")
        self.aside()
        several = self.allows("microbatches", 80)
        self.add(*map(ops.setting, self.restore))
        self.restore = []
        flags = drawn_off(self) if several else []
        # what waits for its all-reduce is added to in a second round without one
        waits = any(flag.flag == "requires_all_reduce" for flag in flags)
        rounds = 2 + self.tape.chance(70 if waits else 30) if several else 1
        if self.microbatches:
            flags = [] if self.case.pipelining.replicates else flags
            rounds = rounds if flags or not self.case.pipelining.scale_grads else 1
        late = [flag for flag in flags if self.tape.chance(6 if flag.flag in SYNC_FLAGS else 30)]
        for i in range(rounds):
            changes: list[Switch] = []
            if i == 0:
                changes = flags
            elif i == rounds - 1:
                changes = [flag._replace(value=True) for flag in flags]
            kept = {(flag.flag, flag.below.target) for flag in late}
            held_back = [flag for flag in changes if (flag.flag, flag.below.target) in kept]
            self.add(*(ops.setting(flag) for flag in changes if flag not in held_back))
            self.draw("before_forward")
            self.forwards()
            self.draw("after_forward")
            if i == 0 and self.zeroing == "between":
                self.draw("new_gradients")
            self.add(*map(ops.setting, held_back))
            self.backwards(last=i == rounds - 1)
            self.draw("after_backward")
            if i < rounds - 1 and not self.pending:
                self.draw("between_rounds")
            if i < rounds - 1 or not self.in_order:
                self.aside()
        self.leave_unsynced()
        self.draw("before_step")
        self.draw("update")
        if self.zeroing == "after":
            self.draw("new_gradients")

    def leave_unsynced(self) -> None:
        """Let the step, rarely, follow a backward that did not synchronise; the next step's
        backward does.
        """
        if self.microbatches or self.pending or not self.wrapped or self.in_order:
            return
        if not self.allows("no_sync", 12):
            return
        flag = self.off("requires_gradient_sync", partial=self.tape.chance(40))
        self.add(ops.setting(flag))
        self.forward()
        self.backward("all")
        self.restore.append(flag._replace(value=True))

    def off(self, flag: Flag, *, partial: bool) -> Switch:
        """Switch ``flag`` off; ``partial`` spares some groups."""
        if not partial or not self.wrapped:
            return Switch(flag, value=False)
        target = self.tape.pick([module for module in self.wrapped if module] or self.wrapped)
        return Switch(flag, value=False, below=Below(target, self.tape.chance(30)))

    def forwards(self) -> None:
        """Draw what precedes the backward of a round: a forward, or two; or none when one is
        pending still.
        """
        if self.pending and self.tape.chance(50):
            return
        for _ in range(self.microbatches - 1):
            self.forward()
        self.forward()
        if self.paired and self.tape.chance(60):
            self.draw("before_second_forward")
            self.aside()
            self.forward()

    def backwards(self, *, last: bool) -> None:
        """Draw the backward of a round; the last round leaves nothing pending."""
        if self.pending > 1 and self.allows("backward_order", 75):
            self.backward("oldest" if self.tape.chance(50) else "newest")
            if last:
                self.draw("before_backward")
                self.backward("all")
        else:
            self.draw("before_backward")
            self.backward("all")

    def backward(self, which: Which) -> None:
        """Draw a backward of pending losses, or two, also of two losses of the last forward."""
        first = rest = None
        if self.allows("retain_graph", 60):
            first, rest = self.some_outputs(which)
            self.add(ops.taking(which, retain_graph=True, outputs=first))
        self.add(ops.taking(which, outputs=rest))

    def forward(self, *, grad: bool = True, inference: bool = False) -> None:
        """Draw a forward of the root or a module below it, of which there can be a backward."""
        target = ""
        if self.targets and self.started and self.tape.chance(35):
            chosen = self.tape.pick(self.targets)
            if any(self.model.flow.outputs(chosen, self.trainable)):
                target = chosen
        self.started |= not target
        if not self.tape.chance(10):
            self.batch += 1
        outputs = self.outputs(target)
        self.add(ops.Forward.drawn_as(Call(target, self.batch, grad, outputs, inference), self))

    def evaluate(self, *, inference: bool = False) -> None:
        """Draw forwards without gradients, as many as a backward takes."""
        for _ in range(self.microbatches or 1):
            self.forward(grad=False, inference=inference)

    def another_mesh(self) -> tuple[int, ...]:
        """Return other data-parallel axes of the same ranks that experts can be shared on, most
        likely with shards of another size; or none.
        """
        mesh = self.case.mesh
        shards = any(spec.spreads == "experts" for spec in specs(self.case.engines))
        fitting: list[tuple[tuple[int, ...], int]] = []
        for axes in mesh.shapes:
            there = self.case.on(axes)
            apart = not shards or (len(axes) > 1 and shares_evenly(there))
            if there.mesh != mesh and apart and fits_options(there, self.model.found):
                fitting.append((axes, 1 if there.mesh.shard == mesh.shard else 3))
        return self.tape.weighted(fitting) if fitting else ()

    def outputs(self, target: str) -> tuple[int, ...] | None:
        """Return the outputs that enter the loss, of which one requires a gradient at least."""
        flows = self.model.flow.outputs(target, self.trainable)
        if len(flows) == 1 or not self.allows("partial_loss", 75):
            return None
        return self.some_of(range(len(flows)), flows)

    def some_of(self, outputs: Sequence[int], flows: Sequence[bool]) -> tuple[int, ...]:
        """Return one of ``outputs`` that requires a gradient (``flows``); of many, others too."""
        kept = self.tape.pick([i for i in outputs if flows[i]])
        several = len(outputs) > 2
        return tuple(i for i in outputs if i == kept or (several and self.tape.chance(40)))

    def some_outputs(self, which: Which) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Return two losses of the last forward, each of some outputs, or of all (None).

        They are of all where that forward is not what a backward takes, or has one output.
        """
        if not self.pending or self.at.why_not(ops.taking(which, outputs=(0,))) is not None:
            return None, None
        call = self.at.pending[-1].call
        flows = self.model.flow.outputs(call.target, self.trainable)
        used = call.used(len(flows))
        if len(used) < 2 or not any(flows[i] for i in used) or self.tape.chance(10):
            return None, None
        first = self.some_of(used, flows)
        rest = tuple(i for i in used if i not in first)
        whole = not any(flows[i] for i in rest) or self.tape.chance(25)
        return first, None if whole else rest

    def aside(self) -> None:
        """Draw something that is no training: a forward without gradients or in eval mode."""
        if self.allows("no_grad_forward", 20):
            self.evaluate(inference=self.allows("inference_forward", 60))
        if self.pending:
            return
        self.draw("aside")
        if not self.allows("eval_forward", 25):
            return
        self.add(ops.mode(train=False))
        grad = self.tape.chance(25) and not self.microbatches
        if grad:
            self.forward()
        else:
            self.evaluate()
        if grad and self.tape.chance(50):
            self.backward("all")
        if not self.add(ops.mode(train=True)):  # what is recomputed would be another forward
            self.backward("all")
            self.add(ops.mode(train=True))
        if self.pending:
            self.backward("all")

    def draw(self, moment: str) -> None:
        """Draw what may be done at this point, by every op that may."""
        for op in OPS:
            op.draw(self, moment)

    def pick_toggle(self) -> tuple[str, bool] | None:
        """Return something to freeze or to unfreeze, as long as a backward stays possible."""
        if not self.toggles or not self.tape.chance(60):
            return None
        self.toggles -= 1
        found = self.model.found
        frozen = frozenset(found.parameters) - self.trainable
        value = bool(frozen) and self.tape.chance(60)
        among = frozen if value else self.trainable
        target = pick_target(self.tape, found, among, module=self.tape.chance(40))
        if target is None:
            return None
        after = self.trainable - below(self.trainable, target, inside=True)
        if value:
            after = self.trainable | below(frozen, target, inside=True)
        if value and any(
            is_within(d.target, target) or is_within(target, d.target) for d in self.case.dtypes
        ):  # what has a dtype of its own stays frozen
            return None
        return (target, value) if any(self.model.flow.outputs("", after)) else None

    def pick_parameters(self) -> str:
        """Return all, those of a module, or one."""
        found = self.model.found
        everything = frozenset(found.parameters)
        one = pick_target(self.tape, found, everything, module=self.tape.chance(40))
        return one if one and self.tape.chance(70) else ""

    @property
    def whole(self) -> frozenset[str]:
        """The trainable parameters to which gradients come under some engine as they are: engines
        without groups, which shard none, run no mixed precision.
        """
        if not has_precision(self.case):
            return self.trainable
        owners = self.model.found.owners
        return frozenset(fqn for fqn in self.trainable if owners[fqn] is None)

    def early(self, percent: int) -> list[Op]:
        """Return the ops before the first step with this probability, else those before any."""
        return self.between[
            0 if not self.tape.chance(100 - percent) else self.tape.below(len(self.between))
        ]

    def any_wrapped(self, percent: int = 40) -> Below:
        """Return the root and all below it, or one wrapped module with this probability."""
        if not self.wrapped or not self.tape.chance(percent):
            return Below()
        return Below(self.tape.pick(self.wrapped), self.tape.chance(30))

    def finished(self) -> tuple[Op, ...]:
        """Return the schedule, often with a last forward, which shows whether what the last step
        changed is used.

        Where only losses are compared, engines freeze something before the last one of
        training.
        """
        drawn = tuple(self.ops)
        if "losses_only" in self.swarm and not self.case.dtypes:
            last = max((i for i, op in enumerate(drawn) if op.call), default=0)
            frozen = [f.target for f in self.case.freezes]
            target = self.tape.pick(frozen) if frozen else ""
            toggle = ops.toggling(target, value=True, engines_only=True)
            drawn = self.accepted((*drawn[:last], toggle, *drawn[last:])) or drawn
        elif self.tape.chance(FINAL_FORWARD) and not self.in_order:
            for i in range(self.microbatches or 1):
                self.add(ops.running(Call(batch=self.batch + 1 + i, grad=False)))
            drawn = tuple(self.ops)
        return with_calls(self, drawn) if "any_moment" in self.swarm else drawn
