"""The schedule as straight-line statements on one model."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Dropout
from fuzzshard.case.progress import Progress
from fuzzshard.case.schedule import (
    Backward,
    Forward,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    Step,
    ZeroGrad,
)
from fuzzshard.errors import UsageError
from fuzzshard.model.source import call_expression
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.helpers import AVERAGING
from fuzzshard.reproducer.inputs import InputNames
from fuzzshard.reproducer.losses import losses
from fuzzshard.reproducer.setup import assignment, at, freeze_lines, optimizer_line, requires_grad_lines
from fuzzshard.reproducer.sync import Flags, SyncPlan, sync_plan
from fuzzshard.reproducer.watch import Watch, output_expressions


class Program:
    """Writes the ops up to the one that the aim looks at; ``lines`` is the result.

    ``called`` is the variable that a forward of the root calls, ``model`` the one whose attributes are
    modules and parameters: they differ for DDP. ``uses`` collects the names of helpers to define and
    of things to import.
    """

    def __init__(self, case: Case, aim: Aim, *, called: str, model: str) -> None:
        self.case, self.aim, self.called, self.model = case, aim, called, model
        self.facts = facts(case)
        self.last = len(case.schedule) - 1 if aim.op is None else aim.op
        self.ops = case.schedule[: self.last + 1]
        self.losses = losses(case, self.last)
        self.inputs = InputNames(case, self.ops)
        self.sync = self._sync_plan()
        self.uses: set[str] = set()
        self._averages = [i for i, names in self.sync.unsynced.items() if not names]
        self._flags = Flags(case)
        self.watch = Watch(
            case, aim, self.ops, self.inputs, self.uses, called=called, model=model, sums=self._sums
        )
        self._inlined: dict[int, str] = {}
        self._progress = Progress(case)
        self._unsynced = False
        self._leaves_waiting = any(
            isinstance(op, SetFlag) and op.flag == "is_last_backward" for op in self.ops
        )
        self._dropout = any(isinstance(m, Dropout) for m in self.facts.modules.values())
        self.lines = self._setup() + [line for i in range(len(self.ops)) for line in self._advance(i)]

    @property
    def by_hand(self) -> bool:
        """Whether some gradients are averaged by hand."""
        return bool(self.sync.names and self.losses.taken)

    @property
    def _sums(self) -> bool:
        return self.by_hand and not self.sync.plain

    @property
    def renamed(self) -> bool:
        """Whether the names that a wrapped model gives its parameters differ from the plain model's."""
        return self.aim.engine == "ddp" or any(c.implementation == "wrapper" for c in self.case.checkpoints)

    def parameters(self, model: str) -> str:
        """A dict of the parameters of a model, by the names that the plain model gives them."""
        return (
            f"dict(zip(names, {model}.parameters()))" if self.renamed else f"dict({model}.named_parameters())"
        )

    def _sync_plan(self) -> SyncPlan:
        owners = set(self.facts.owners.values())
        if not self.aim.trains_reference:
            owners &= {None} if self.aim.engine == "fully_shard" else set()
        reads = {i for i in self.losses.taken if self.aim.watches("gradient", i)}
        return sync_plan(self.case, self.last, owners, self.losses.taken, reads)

    def _setup(self) -> list[str]:
        lines = freeze_lines(self.case, self.model, after_wrap=True)
        if {"gradient", "local_gradient", "parameter"} & set(self.aim.oracles) or self.aim.kind == "replicas":
            if self.renamed:
                self.uses.add("names")
            lines.append(f"params = {self.parameters('model')}")
        if any(isinstance(op, Step | ZeroGrad) for op in self.ops):
            grouped = (
                self.aim.engine == "fully_shard" and len({o is None for o in self.facts.owners.values()}) > 1
            )
            self.uses |= {"parameter_groups"} if grouped else set()
            lines.append(
                optimizer_line(self.case, "parameter_groups(model)" if grouped else "model.parameters()")
            )
        if self._sums:
            lines.append("local = {}  # sums of gradients that are not averaged yet")
        if self.aim.trains_reference and self.aim.op is None:
            lines.append("seen = {}")
        return lines

    def _advance(self, index: int) -> list[str]:
        lines = self._op(index)
        self._progress.advance(skipped=index in self.losses.skipped)
        return lines

    def _op(self, index: int) -> list[str]:
        match self.ops[index]:
            case Forward() as op:
                return self._forward(index, op)
            case Backward():
                return self._backward(index)
            case Step():
                return [*self._reshard(), "optimizer.step()", *self.watch.lines(index, ("parameter",))]
            case ZeroGrad(set_to_none=to_none):
                return [f"optimizer.zero_grad({'' if to_none else 'set_to_none=False'})"]
            case SetFlag() as op:
                return self._set_flag(op)
            case SetRequiresGrad() as op:
                return [*self._reshard(), *requires_grad_lines(self.case, self.model, op.target, op.value)]
            case SetMode(train=train):
                return [f"{self.called}.{'train' if train else 'eval'}()"]
            case op:
                raise UsageError(f"no script can be written for {op.__struct_config__.tag!r}", "use replay")

    def _forward(self, index: int, op: Forward) -> list[str]:
        lines = self.inputs.definitions(op, self.uses)
        if self._dropout:
            self.uses.add("seed_of")
            lines.append(f'torch.manual_seed(seed_of({self.case.seed}, "dropout", {index}, rank))')
        callee = at(self.called if not op.target else self.model, op.target)
        call = call_expression(
            self.facts.modules[op.target], callee, self.inputs.arguments(op), self.case.inputs.seq
        )
        body = self._body(index, op, call)
        if not op.grad:
            body = ["with torch.no_grad():", *(f"    {line}" for line in body)]
        return [*lines, *body, *self.watch.lines(index, ("output", "loss", "registered_parameter", "buffer"))]

    def _body(self, index: int, op: Forward, call: str) -> list[str]:
        """The call and its loss, in as few statements as what is looked at allows."""
        looks_at_output = self.aim.watches("output", index)
        if not self.aim.watches("loss", index) and index not in self.losses.needed:
            return [f"out = {call}" if looks_at_output else call]
        outputs = output_expressions(self.case, op)
        used = range(len(outputs)) if op.outputs is None else op.outputs
        terms = [self._term(op, i, outputs[i]) for i in used]
        loss = self.watch.loss(index)
        if len(terms) > 1:
            listed = ["terms = [", *(f"    {term}," for term in terms), "]"]
            return [f"out = {call}", *listed, f"{loss} = torch.stack(terms).sum()"]
        if looks_at_output or terms[0].count("out") > 1:
            return [f"out = {call}", f"{loss} = {terms[0]}"]
        term = terms[0].replace("out", call)
        if self._goes_straight_into_backward(index):
            self._inlined[index] = term
            return []
        return [f"{loss} = {term}"]

    def _goes_straight_into_backward(self, index: int) -> bool:
        keeps = self.aim.trains_reference and self.aim.op is None
        return self.losses.taken.get(index + 1) == [index] and self.sync.plain and not keeps

    def _term(self, op: Forward, index: int, output: str) -> str:
        match self.case.loss:
            case "sum":
                return f"{output}.sum()"
            case "mean_square":
                return f"{output}.square().mean()"
            case "dot":
                size = self.facts.output_values[op.target][index].size
                name = f'{self.case.seed}, "target", "{op.target}", {index}, {op.batch}, rank'
                return f"({output} * values({(*self.inputs.leading, size)}, {name}).to(device)).sum()"

    def _backward(self, index: int) -> list[str]:
        lines = []
        if index not in self.losses.skipped:
            taken = [self._inlined.get(i, self.watch.loss(i)) for i in self.losses.taken[index]]
            loss = taken[0] if len(taken) == 1 else f"torch.stack([{', '.join(taken)}]).sum()"
            lines = self._differentiate(index, loss)
            self._unsynced = self.aim.engine == "ddp" and not self._flags.synced(None)
        gradient = "local_gradient" if self._unsynced else "gradient"
        if self._leaves_waiting and self.aim.watches("gradient", index):
            lines += ['if device == "cuda":', "    torch.cuda.synchronize()  # only the last backward waits"]
        return lines + self.watch.lines(index, ("input_gradient", gradient))

    def _differentiate(self, index: int, loss: str) -> list[str]:
        unsynced = self.sync.unsynced[index]
        if not self.by_hand or (self.sync.plain and unsynced):
            return [f"{loss}.backward()"]
        if self.sync.plain and len(self._averages) == 1:
            return [f"{loss}.backward()", *AVERAGING.strip().splitlines()]
        if self.sync.plain:
            self.uses.add("average")
            return [f"{loss}.backward()", "average(by_hand)"]
        self.uses.add("backward")
        roots = self.sync.through.get(index)
        through = f", through={set(roots)}" if roots else ""
        if not unsynced:
            return [f"backward({loss}, by_hand, local{through})"]
        if len(unsynced) == len(self.sync.names):
            return [f"backward({loss}, by_hand, local, unsynced=by_hand{through})"]
        return [*assignment("unsynced", unsynced), f"backward({loss}, by_hand, local, unsynced{through})"]

    def _reshard(self) -> list[str]:
        """Parameters may only change while they are sharded, says the docstring of ``fully_shard``."""
        kept = self._progress.may_be_unsharded and self.case.wrap
        if self.aim.engine != "fully_shard" or not kept:
            return []
        self.uses.add("FSDPModule")
        return [
            f"for module in {self.model}.modules():  # only sharded parameters may be changed",
            "    if isinstance(module, FSDPModule):",
            "        module.reshard()",
        ]

    def _no_sync(self, *, leave: bool) -> list[str]:
        """Enters or leaves DDP's context manager, which the schedule does in straight lines."""
        enter = [f"    no_sync = {self.called}.no_sync()", "    no_sync.__enter__()"]
        return [
            f"if isinstance({self.called}, DistributedDataParallel):",
            *(["    no_sync.__exit__(None, None, None)"] if leave else enter),
        ]

    def _set_flag(self, op: SetFlag) -> list[str]:
        before = self._flags.synced(None)
        self._flags.set(op)
        if self.aim.engine == "ddp":
            return [] if self._flags.synced(None) == before else self._no_sync(leave=not before)
        wrapped = {m for group in self.case.wrap for m in group.modules}
        module = at(self.model, op.target)
        if op.flag == "is_last_backward":
            direct, arguments = not op.recurse or wrapped == {op.target}, f"{op.value}"
        else:
            direct, arguments = op.target in wrapped, f"{op.value}{'' if op.recurse else ', recurse=False'}"
        if direct:
            call = f"{module}.set_{op.flag}({arguments})"
            if not self.aim.trains_reference:
                return [call]
            self.uses.add("FSDPModule")
            return [f"if isinstance({module}, FSDPModule):", f"    {call}"]
        if not wrapped:
            return []
        self.uses.add("FSDPModule")
        only = "" if op.flag == "is_last_backward" else ", recurse=False"
        return [
            f"for module in {module}.modules():",
            "    if isinstance(module, FSDPModule):",
            f"        module.set_{op.flag}({op.value}{only})",
        ]
