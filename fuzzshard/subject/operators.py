"""The operators that a training step runs, and the first one that differs between two runs.

A :class:`TorchDispatchMode` sees DTensors whole, above the rule that DTensor has for an operator.
``torch.utils._debug_mode`` is private, and keeps hashes or text.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from fuzzshard.subject.compare import Comparison
from fuzzshard.subject.functions import NOT_THE_USERS, OURS
from fuzzshard.subject.likeness import sketch
from fuzzshard.subject.record import Forwards, Place, Record, kept
from fuzzshard.subject.report import HOWS, Direction, FirstOperator, How
from fuzzshard.subject.steps import mean_of_squares

Gather = Callable[[Any], list[Any]]
"""Gives what all ranks give, in their order."""

_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]

MOST_KEPT = 1 << 28
"""How many elements are kept of the operators of a step."""

NOT_THE_MODELS = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/optim/", OURS)
"""Parts of the names of files that run operators which are none of the model's."""

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp")
"""Namespaces of operators that the plain model does not have."""

UNREAD = {
    "bernoulli_",
    "copy_",
    "exponential_",
    "fill_",
    "normal_",
    "random_",
    "uniform_",
    "zero_",
}
"""Operators that replace whatever their first argument holds."""

MOVERS = ("_to_copy", "_unsafe_view", "cat", "clone", "contiguous", "copy_", "stack")
"""Operators beside views that compute nothing: an engine may do without."""

TENSORS = (torch.Tensor, torch.nn.Parameter, DTensor, AsyncCollectiveTensor)


@dataclasses.dataclass(frozen=True)
class Operator:
    """One call of an operator: the n-th of its name in one call of a module for one batch, or
    in the backward of ``source``, an operator of there.
    """

    batch: int
    module: str
    call: int
    direction: Direction
    name: str
    source: Operator | None = None
    number: int = 0


@dataclasses.dataclass(frozen=True)
class Operand(Place):
    """A tensor that an operator takes or gives; :func:`compare` leaves out what has another
    shape.
    """

    step: int = 0
    kind: Any = "outputs"
    name: str = ""
    operator: Operator | None = None
    index: int = 0
    is_output: bool = False


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what the operators of a model take and give, in the order of time.

    ``lines`` are those of the user's code that call them, in a backward the ones that called the
    operator whose backward that is. ``movers`` compute nothing. What parallelises a
    model, and what trains it, is left out by the files that run it.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._forwards: Forwards | None = None
        self.record = Record()
        self.lines: dict[Operator, str] = {}
        self.movers: set[Operator] = set()
        self.is_full = False
        self._elements = 0
        self._numbers: Counter[Operator] = Counter()
        self._sequences: list[int] = []
        self._sources: list[Operator] = []

    @property
    def recomputes(self) -> bool:
        """Whether a backward runs operators of a forward, of which the other run may have none."""
        return any(operator.direction == "recomputed" for operator in self.lines)

    @contextlib.contextmanager
    def of(self, forwards: Forwards) -> Iterator[None]:
        """Keep what happens within ``forwards``, where what is compiled runs eagerly."""
        self._forwards = forwards
        with torch.compiler.set_stance("force_eager"), self:
            yield

    @override
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        operator = self._operator(func, (args, keywords))
        if operator is None:
            return func(*args, **keywords)
        read = args[1:] if func._opname in UNREAD else args
        self._keep(operator, (read, keywords), is_output=False)
        result = func(*args, **keywords)
        written = [
            argument
            for argument, declared in zip(args, func._schema.arguments, strict=False)
            if declared.alias_info is not None and declared.alias_info.is_write
        ]
        if "empty" not in func._opname:
            self._keep(operator, written or result, is_output=True)
        return result

    def _operator(self, func: Any, given: Any) -> Operator | None:
        """What is called, with its number; None for no operator of the model's or the loss's."""
        line = _line()
        is_one = isinstance(func, OpOverload) and func.namespace not in COLLECTIVES
        if line is None or self._forwards is None or not is_one or self.is_full:
            return None
        direction: Direction = "forward"
        if torch._C._current_graph_task_id() != -1:
            direction = "recomputed" if torch.is_grad_enabled() else "backward"
        source = None if direction == "forward" else self._source()
        found = Operator(*self._forwards.at, direction, str(func))
        if direction == "forward" and not found.call:
            tensors = (value for value in tree_leaves(given) if isinstance(value, torch.Tensor))
            if not any(tensor.requires_grad for tensor in tensors):
                return None  # a step may change what is reduced, which the two models do otherwise
        if direction == "recomputed" and source is not None:
            found = dataclasses.replace(found, batch=source.batch)
        if direction == "backward":
            if source is None:
                return None
            line = line or self.lines[source]
            found = dataclasses.replace(
                found, batch=source.batch, module=source.module, call=source.call, source=source
            )
        self._numbers[found] += 1
        found = dataclasses.replace(found, number=self._numbers[found])
        self.lines[found] = line
        if func.is_view or "empty" in func._opname or func._opname in MOVERS:
            self.movers.add(found)
        if direction != "backward":
            # autograd numbers a node before it runs the operator that the node is of
            sequence = _sequence_number() - 1
            if not self._sequences or sequence > self._sequences[-1]:
                self._sequences.append(sequence)
                self._sources.append(found)
        return found

    def _source(self) -> Operator | None:
        """Return the operator that the node is of which the backward is in, or the last one before
        it: a function of the user's may run none.
        """
        node: Any = torch._C._current_autograd_node()
        if node is None or node._sequence_nr() >= 1 << 63:  # what accumulates has no number
            return None
        index = bisect.bisect_right(self._sequences, node._sequence_nr())
        return self._sources[index - 1] if index else None

    def _keep(self, operator: Operator, values: Any, *, is_output: bool) -> None:
        for index, value in enumerate(tree_leaves(values)):
            is_one = type(value) in TENSORS and value.layout is torch.strided
            if is_one and not self.is_full:
                operand = Operand(operator=operator, index=index, is_output=is_output)
                is_sharded = isinstance(value, DTensor)  # its shards are put together later
                self.record.tensors[operand] = (
                    value.detach().clone() if is_sharded else _kept(value)
                )
                self._elements += value.numel()
                self.is_full = self._elements > MOST_KEPT


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU, of complex numbers as pairs, which rounding has a bound for."""
    copy = kept(tensor)
    return torch.view_as_real(copy.resolve_conj()) if copy.is_complex() else copy


def _line() -> str | None:
    """Return the line of the user's that calls an operator, "" for none; None where no code of the
    model or the loss calls it.
    """
    frame, is_within = sys._getframe(3), False
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if code.co_name == "_engine_run_backward" or code is mean_of_squares.__code__:
            return ""
        if code.co_name == "_call_impl":  # hooks of a module, and its forward, are called there
            is_within = True
        elif any(part in file for part in NOT_THE_MODELS):
            if not is_within:
                return None
            if file.startswith(OURS):
                return ""
        elif not any(part in file for part in NOT_THE_USERS):
            text = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}:{frame.f_lineno}: {text}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def complete(record: Record, microbatches: int, gather: Gather) -> None:
    """Put whole tensors in the place of DTensors, which all ranks have to ask for: of operators
    that some ranks run alone nothing is kept.
    """
    sharded = [operand for operand, t in record.tensors.items() if isinstance(t, DTensor)]
    mine = {_anywhere(operand, microbatches): operand for operand in sharded}
    everywhere = gather([*mine])
    common = set.intersection(*map(set, everywhere))
    for operand in everywhere[0]:
        if operand in common:
            tensor = record.tensors[mine[operand]]
            assert tensor is not None
            record.tensors[mine[operand]] = _kept(tensor)
    for operand in sharded:
        if isinstance(record.tensors[operand], DTensor):
            del record.tensors[operand]


def _anywhere(operand: Any, microbatches: int) -> Any:
    """Return an operand, or an operator, as ranks with other batches have it."""
    if isinstance(operand, Operand):
        operator = _anywhere(operand.operator, microbatches)
        return dataclasses.replace(operand, operator=operator)
    if operand is None or operand.batch < 0:
        return operand
    source = _anywhere(operand.source, microbatches)
    return dataclasses.replace(operand, batch=operand.batch % microbatches, source=source)


def parts(whole: Record, observed: Record, mesh: DeviceMesh) -> tuple[Record, frozenset[Place]]:
    """Return the tensors of ``whole``, cut to this rank's part where ``observed`` has only that,
    and which ones were cut.
    """
    found, cut = Record(), set()
    for operand, tensor in whole.tensors.items():
        seen = observed.tensors.get(operand)
        part = None if tensor is None or seen is None else _part(tensor, seen.shape, mesh)
        found.tensors[operand] = tensor if part is None else part
        cut |= {operand} if part is not None else set()
    return found, frozenset(cut)


def _part(tensor: torch.Tensor, shape: torch.Size, mesh: DeviceMesh) -> torch.Tensor | None:
    """This rank's part of a tensor along an axis of the mesh, if it has that shape."""
    if tensor.dim() != len(shape):
        return None
    differing = [dim for dim, size in enumerate(shape) if size != tensor.shape[dim]]
    for axis in range(mesh.ndim if len(differing) == 1 else 0):
        shards = tensor.chunk(mesh.size(axis), differing[0])
        rank = mesh.get_local_rank(axis)
        if rank < len(shards) and shards[rank].shape == shape:
            return shards[rank]
    return None


def twice(operators: Operators) -> tuple[Operators, Operators]:
    """Return the operators that a backward runs again: as they ran in the forward, and as there.

    In which order a backward comes to several calls of a module is not known: these are left out.
    """
    first, again, twins = Operators(), Operators(), dict[Operator, Operator]()
    several = {(o.batch, o.module) for o in operators.lines if o.call > 1}
    for operator, line in operators.lines.items():
        before = dataclasses.replace(operator, direction="forward", call=1)
        is_one = operator.direction == "recomputed" and before in operators.lines
        if is_one and (operator.batch, operator.module) not in several:
            twins |= {before: operator}
            first.lines[operator] = again.lines[operator] = line
    for operand, tensor in operators.record.tensors.items():
        if isinstance(operand, Operand) and (of := operand.operator) is not None:
            if of in again.lines:
                again.record.tensors[operand] = tensor
            elif of in twins:
                operand = dataclasses.replace(operand, operator=twins[of])
                first.record.tensors[operand] = tensor
    return first, again


def align(plain: Operators, parallel: Operators) -> None:
    """Give the operators of ``parallel`` the numbers that they have in ``plain``, those that it
    alone runs negative ones.

    Where one module calls a name as often in both, the first is the first. Elsewhere the same line
    of the user's has to call it.
    """
    theirs, renamed = _grouped(plain), {}
    for group, operators in _grouped(parallel).items():
        left = theirs.get(group, [])
        is_equal = len(left) == len(operators)
        for operator in operators:
            line = parallel.lines[operator]
            same = (o for o in left if is_equal or plain.lines[o] == line)
            match = next(same, dataclasses.replace(operator, number=-operator.number))
            renamed[operator] = match
            left = [other for other in left if other != match]
    parallel.lines = {renamed[operator]: line for operator, line in parallel.lines.items()}
    parallel.movers = {renamed[operator] for operator in parallel.movers}
    parallel.record.tensors = {
        dataclasses.replace(operand, operator=renamed[operand.operator]): tensor
        for operand, tensor in parallel.record.tensors.items()
        if isinstance(operand, Operand) and operand.operator is not None
    }


def _grouped(operators: Operators) -> dict[Operator, list[Operator]]:
    groups: dict[Operator, list[Operator]] = {}
    for operator in operators.lines:
        groups.setdefault(dataclasses.replace(operator, number=0), []).append(operator)
    return groups


def side_by_side(
    plain: Operators,
    parallel: Operators,
    comparison: Comparison,
    cut: frozenset[Place] = frozenset(),
    equal: Set[tuple[int, str]] | None = None,
) -> list[FirstOperator]:
    """Describe the operators of both runs in the order of time, each by how it differs; "none" for
    those that are equal, or of which nothing can be told.

    Those that one run alone has are left out if ``equal`` is None. Modules that it names after a
    batch give equal outputs, by other operators too, and may have others in the backward.
    """
    operands: dict[Operator, list[Operand]] = {}
    for place in plain.record.tensors:
        if isinstance(place, Operand) and place.operator is not None:
            operands.setdefault(place.operator, []).append(place)
    positions = {operator: number for number, operator in enumerate(plain.lines)}
    found: list[FirstOperator] = []
    alone = (positions.keys() ^ parallel.lines.keys()) - plain.movers - parallel.movers
    rewritten = {(o.batch, o.module) for o in alone if o.direction == "forward" and o.call}

    def counts(operator: Operator) -> bool:
        if equal is None or operator not in alone:
            return False
        path = itertools.accumulate(operator.module.split("."), "{}.{}".format)
        is_equal = any((operator.batch, module) in equal for module in ("", *path))
        return (operator.batch, operator.module) not in rewritten or not is_equal

    def note(how: How, position: int, operator: Operator, operand: Operand | None = None) -> None:
        observed = parallel.record.tensors.get(operand) if operand else None
        expected = plain.record.tensors.get(operand) if operand else None
        row = FirstOperator(
            how=how,
            position=position,
            name=operator.name,
            direction=operator.direction,
            module=operator.module,
            call=operator.call,
            line=parallel.lines.get(operator) or plain.lines.get(operator, ""),
            observed=sketch(observed, expected) if operand else "",
            expected=sketch(expected, observed) if operand else "",
        )
        found.append(row)

    for operator, position in positions.items():
        if operator in parallel.lines:
            its = operands.get(operator, [])
            given = next((operand for operand in its if operand.is_output), None)
            how, operand = _how(its, comparison, cut) or ("none", given)
            note(how, position, operator, operand)
        elif counts(operator):
            note("missing", position, operator)
    position = 0
    for operator in parallel.lines:
        position = positions.get(operator, position)
        if operator.number < 0 and counts(operator):
            note("extra", position, operator)
    return sorted(found, key=lambda row: row.position)


def first_operator(rows: Sequence[FirstOperator]) -> FirstOperator:
    """Return the first operator that takes what is equal in both runs and gives what is not.

    Where there is none, it is the first that takes other tensors already, or that one of the two
    alone runs.
    """
    differing = (row for row in rows if row.how != "none")
    both = sum(row.how not in ("missing", "extra") for row in rows)
    return min(differing, key=order, default=FirstOperator(compared=both))


def order(found: FirstOperator) -> tuple[int, int, int]:
    """Sort by how much is known, then by time."""
    clear = 0 if found.how == "outputs" else 1 if found.name else 2
    return clear, found.position, HOWS.index(found.how)


def _how(
    operands: Sequence[Operand], comparison: Comparison, cut: frozenset[Place]
) -> tuple[How, Operand] | None:
    """Return how an operator of both runs differs, and in which operand."""
    reached = {o: result[0] for o in operands if (result := comparison.results.get(o))}
    differing = [operand for operand in reached if reached[operand] == "different"]
    if taken := [operand for operand in differing if not operand.is_output]:
        return "inputs", taken[0]
    is_told = all(operand in reached for operand in operands if not operand.is_output)
    for operand in differing if is_told else ():
        # of what ranks have in parts, a whole tensor may be one term of a sum
        if operand in cut or cut.isdisjoint(operands):
            return "outputs", operand
    return None
