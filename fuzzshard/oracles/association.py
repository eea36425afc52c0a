"""From which op on engines may add the terms of some gradient in different orders.

A sum of two terms has one rounding whatever their order; three that are grouped otherwise may round
otherwise. Autograd adds up the contributions to a value as they arrive, the newest reader's first.
``fully_shard`` puts nodes at module boundaries: what arrives there is added up before it goes on.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from fuzzshard.case.autograd import Node, Tape, Value
from fuzzshard.case.case import Case
from fuzzshard.case.check_dtypes import gradients_outgrow_reductions
from fuzzshard.case.dtypes import computing_dtype, reduction_dtype, reductions_follow_parameters
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.graph import Block
from fuzzshard.case.groups import wrapped_modules
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule_state import engines_train_more_from, first, follow
from fuzzshard.case.strides import strides_are_free
from fuzzshard.case.sync_flags import flags_set
from fuzzshard.case.units import fsdp1_shards
from fuzzshard.parts.dtypes import Dtype

MOST_TERMS = 2
"""Terms whose sum is the same in any order."""


def accumulates(case: Case) -> bool:
    """Whether several backwards add up in one gradient."""
    return _accumulates_at(case) < len(case.schedule)


def _accumulates_at(case: Case) -> int:
    """The first backward that adds to a gradient; what the optimizer does not hold is never zeroed."""
    kept = bool(case.optimizer.exclude)
    ops = [
        (index, op)
        for index, op in enumerate(case.schedule)
        if op.takes or (op.zeroes_gradients and not kept)
    ]
    pairs = itertools.pairwise(ops)
    again = (b for (_, a), (b, op) in pairs if a.takes and op.takes)
    return next(again, len(case.schedule))


def adds_in_another_order(case: Case, engine: str = "") -> bool:
    """Whether some gradient is a sum that engines may associate differently, or that ``engine`` may."""
    return reorders_from(case, engine) < len(case.schedule)


@functools.lru_cache(maxsize=512)
def reorders_from(case: Case, engine: str = "") -> int:
    """The first op whose sums some engine may associate differently, or that ``engine`` may; else the end.

    The gradients of several backwards ``fully_shard`` adds up as the reference does, one after another:
    unreduced ones on every rank, then the reduced sums; not where it reduces over shards only for a while.
    DDP adds to the sum that was reduced before, but leaves autograd's own sums alone; the reference does not
    where a wrapped module returns an input, which is a view there (``Reference._watch``).

    So is a norm that is clipped: of shards first, then of their norms. A compiled backward orders its sums
    itself. Tensor-parallel ranks each add up a part of what one matrix product adds up, in forward already,
    and a convolution or a frozen matrix may choose another kernel where strides leave it the choice.

    So may ``matmul`` with a parameter that the reference alone has frozen: what requires a gradient decides
    whether a batch is folded into the rows (``should_fold`` in aten/src/ATen/native/LinearAlgebra.cpp).
    """
    return min(_regroups_sums_from(case, engine), engines_train_more_from(case))


def _regroups_sums_from(case: Case, engine: str) -> int:
    if case.compile is not None or case.tensor_parallel or (engine != "ddp" and strides_are_free(case)):
        return 0
    if engine == "ddp":
        views = any(seen.returned for seen in _boundaries(case))
        return min(_accumulates_at(case), _regroups_at(case)) if views else _accumulates_at(case)
    ends = [len(case.schedule), _regroups_at(case), _rounds_unreduced_from(case)]
    ends.append(first(case, lambda op: op.clips))
    if engine != "fully_shard" or _reduces_in_parts(case):
        ends.append(_accumulates_at(case))
    return min(ends)


def _regroups_at(case: Case) -> int:
    """The first backward whose sums within one rank a sharding engine may associate differently.

    That of several forwards reduces the gradients of each, where plain autograd adds them up first.
    """
    regrouped = _regrouped(case)
    pending, differs = 0, False
    for index, op in enumerate(case.schedule):
        if op.call and op.call.grad:
            pending += 1
            differs |= next(regrouped)
        elif op.takes and pending:
            if differs or pending > 1:
                return index
            pending = 0
    return len(case.schedule)


def _rounds_unreduced_from(case: Case) -> int:
    """The first backward that adds a gradient to an unreduced one of a narrower dtype.

    The reference casts it first. ``fully_shard`` rounds the sum only: it puts off the cast where the dtype of
    the reduction is wider than the parameter's (``_set_unsharded_grad_dtypes`` in
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). Neither is documented.
    """
    end = len(case.schedule)
    if not (reductions_follow_parameters(case) and gradients_outgrow_reductions(case, facts(case))):
        return end
    unreduced = False
    for at in follow(case):
        if at.op.takes:
            if unreduced:
                return at.index
            unreduced = not all(at.flags.reduce.values())
    return end


def _reduces_in_parts(case: Case) -> bool:
    """Whether gradients are reduced over shards in one backward and over replicas in another."""
    return "requires_all_reduce" in flags_set(case) and case.mesh.replicate is not None


class _Boundaries:
    """Puts a node at the inputs of every wrapped module, as ``fully_shard`` does, and counts the calls.

    ``nodes`` has the boundary of each input of a call, with where it comes among those of its call: they are
    arguments of one function, whose gradients arrive together. ``returned``: some module returned an input.
    """

    def __init__(self, case: Case, found: Facts, cast: Dtype | None) -> None:
        self.found, self.cast = found, cast
        self.wrapped = wrapped_modules(case)
        self.called: Counter[str] = Counter()
        self.returned = False
        self.nodes: dict[int, Term] = {}
        self.readers: dict[int, list[Term]] = {}
        self.tape = Tape(case, found, self)

    def enter(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        """An RMS norm reads its input twice: on the CPU it is made of other functions."""
        self.called[path] += grad
        if grad and path in self.wrapped:
            call = len(self.tape.nodes)
            args = [arg if arg is None else self._boundary(arg, (call, i)) for i, arg in enumerate(args)]
        if grad and path in self.found.leaves and self.found.leaves[path].reads_twice:
            self.read(args, len(self.tape.nodes), first=len(args))
        return args

    def leave(self, path: str, results: list[Value], *, grad: bool) -> list[Value]:
        """To return a value is not to read it."""
        self.returned |= any(value is not None and value.number in self.nodes for value in results)
        return results

    def _boundary(self, value: Node, place: Term) -> Node:
        made = self.tape.node((value,))
        self.nodes[made.number] = place
        return made

    def read(self, values: Iterable[Value], reader: int, *, first: int = 0) -> None:
        """Notes that ``reader`` reads the values, as its arguments from the ``first`` on."""
        for position, value in enumerate(values, first):
            if value is not None:
                self.readers.setdefault(value.number, []).append((reader, position))

    def terms(self, value: int, *, grouped: bool) -> Iterator[Sum]:
        """What adds up to the gradient of ``value``, in the order in which it arrives.

        ``grouped`` has the terms of one boundary added up before they arrive. From one that nothing reads
        zeros arrive: they round nothing, but their strides may become those of the sum.
        """
        if not grouped:
            yield from sorted(self._spread(value), key=_arrival)
            return
        for reader in sorted(self.readers.get(value, ()), key=self._place):
            if self.readers.get(reader[0]) and reader[0] in self.nodes:
                yield _sum(self.terms(reader[0], grouped=True))
            else:
                yield reader

    def _place(self, reader: Term) -> Term:
        """When what ``reader`` hands back arrives."""
        return _arrival(self.nodes.get(reader[0], reader))

    def _spread(self, value: int) -> Iterator[Term]:
        """The terms of ``value`` and of all that it is handed on as."""
        for reader in self.readers.get(value, ()):
            if reader[0] in self.nodes:
                yield from self._spread(reader[0])
            else:
                yield reader


Term = tuple[int, int]
"""A term, by the node that it comes from and the argument of it that it is the gradient of."""
Sum = tuple[object, ...]
"""A term, or a sum of two."""


def _arrival(term: Term) -> Term:
    """Sorts by when a term arrives: the newest node's first, of one node in the order of its arguments."""
    return -term[0], term[1]


def _sum(terms: Iterable[Sum]) -> Sum:
    """The terms added up one after another; the sum of two is the same either way round."""
    return functools.reduce(lambda total, term: tuple(sorted((total, term), key=repr)), terms)


def _regrouped(case: Case) -> Iterator[bool]:
    """For every forward with gradients, whether boundaries regroup a sum that it contributes to.

    A group whose module is called twice reduces twice, over the mesh before the two are added. And where
    gradients are cast on their way, it is open whether each term is, or their sum.
    """
    for seen in _boundaries(case):
        yield (
            _reduces_twice(case, seen)
            or bool(_cast_terms(case, seen))
            or any(
                _sum(seen.terms(value, grouped=True)) != _sum(seen.terms(value, grouped=False))
                for value in seen.readers.keys() - seen.nodes.keys()
                if any(True for _ in seen.terms(value, grouped=False))
            )
        )


def _boundaries(case: Case) -> Iterator[_Boundaries]:
    """Those of every forward with gradients, with what reads which value.

    Whatever requires a gradient at some time counts; an output that enters the loss is read by it.
    """
    found = facts(case)
    for at in follow(case):
        if (call := at.op.call) and call.grad:
            seen = _Boundaries(case, found, at.cast)
            outputs = seen.tape.forward(call.target, grad=True, paths=at.paths, frozen=(), training=False)
            for node in seen.tape.nodes:
                seen.read(node.inputs, node.number)
            seen.read(outputs, len(seen.tape.nodes))
            yield seen


def _reduces_twice(case: Case, seen: _Boundaries) -> bool:
    """Whether some parameter is used in two calls of a module of its group."""
    again = [max(seen.called[module] for module in group.modules) > 1 for group in case.wrap]
    owners = seen.found.owners
    return any(
        (owner := owners[fqn]) is not None and again[owner] for fqn, count in _uses(seen).items() if count > 1
    )


@functools.lru_cache(maxsize=512)
def narrow_sums(case: Case, engine: str) -> Mapping[str, Dtype]:
    """The parameters whose gradients ``engine`` may add up in another dtype than the reference, and which.

    FSDP1 where it does not shard casts what has accumulated to the dtype of the reduction, and reduces it
    again (``_reduce_grad_no_shard`` in torch/distributed/fsdp/_runtime_utils.py).
    """
    found: dict[str, Dtype] = {}
    again = engine == "fsdp1" and accumulates(case) and not fsdp1_shards(case)
    for seen in _boundaries(case):
        found |= _cast_terms(case, seen)
        if again:
            found |= {fqn: reduction_dtype(case, seen.found, fqn, seen.cast) for fqn in _uses(seen)}
    return found


def _cast_terms(case: Case, seen: _Boundaries) -> Mapping[str, Dtype]:
    """The parameters with several gradients that are cast to the dtype that they are accumulated in.

    ``reduce_dtype`` and ``grad_dtype`` are documented to be that of the accumulation
    (``MixedPrecisionPolicy``): whether a term is cast before it is added, nothing says.
    """
    if not reductions_follow_parameters(case):
        return {}
    tied = _tied_in_a_leaf(case, seen.found)
    return {
        fqn: dtype
        for fqn, count in _uses(seen).items()
        if (count > 1 or fqn in tied)
        and (dtype := computing_dtype(case, seen.found, fqn, seen.cast))
        != reduction_dtype(case, seen.found, fqn, seen.cast)
    }


def _uses(seen: _Boundaries) -> Counter[str]:
    """How many nodes of a forward use each parameter."""
    return Counter(fqn for node in seen.tape.nodes for fqn in node.parameters)


def _tied_in_a_leaf(case: Case, found: Facts) -> set[str]:
    """The parameters that one module, which is one node, uses under two names."""
    leaves = [path for path, module in found.modules.items() if not isinstance(module, Block)]
    return {
        tie.source
        for tie in case.ties
        if any(is_within(tie.source, leaf) and is_within(tie.parameter, leaf) for leaf in leaves)
    }
