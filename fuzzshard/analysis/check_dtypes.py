"""Whether the forwards of a Case can compute: the dtypes of values, followed through the graph.

Most modules want inputs of the dtype of their parameters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from typing_extensions import override

from fuzzshard.analysis.dtypes import (
    Casts,
    casts,
    computing_dtype,
    has_precision,
    stored_dtype,
)
from fuzzshard.analysis.forward_walk import AgreeingWalk
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Module, TensorOp, join
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.dtypes import Dtype, promote
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.op import Reasons

DtypeOrIds = Dtype | None
"""The dtype of a value; None for ids."""


class CallDtypes(NamedTuple):
    """What a module computes with in one call, and what it returns, as its policy casts them."""

    module: str
    inputs: tuple[DtypeOrIds, ...]
    outputs: tuple[DtypeOrIds, ...]


class CastHere(NamedTuple):
    """Which inputs and which outputs of a call its policy casts to another dtype, into new
    tensors.
    """

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def check_dtypes(case: Case, found: Inferred, target: str, cast: Dtype | None) -> None:
    """Raises :class:`InvalidCase` where a forward of ``target`` brings two dtypes together;
    ``cast`` is the dtype of the last ``Cast`` op, if any.
    """
    if has_precision(case) or case.dtypes:
        _Flow(case, found, cast).forward(target)


def norms_half_precision_in_float32(case: Case, found: Inferred) -> bool:
    """Return whether a layer norm in float32 is called with values in half precision."""
    mixed = has_precision(case) or case.dtypes
    return bool(mixed) and any(flow.norms_half_precision for flow in _forwards(case, found))


def called_dtypes(case: Case, found: Inferred) -> list[CallDtypes]:
    """Return every call of a module in the forwards of the schedule, in order; nothing where no
    dtype is mixed.
    """
    mixed = has_precision(case) or case.dtypes
    return [call for flow in _forwards(case, found) for call in flow.calls] if mixed else []


def casts_made(
    case: Case, found: Inferred, target: str, *, cast: Dtype | None, paths: Mapping[str, int]
) -> Mapping[str, deque[CastHere]]:
    """Return what the calls of each module cast in a forward of ``target``, in order; empty
    without any policy.

    ``cast`` is the dtype of the last ``Cast`` op, if any, and ``paths`` says which alternatives
    run.
    """
    if not has_precision(case):
        return {}
    flow = _EveryCall(case, found, cast, paths)
    flow.forward(target)
    return flow.made


def _forwards(case: Case, found: Inferred) -> Iterator[_Flow]:
    """Yield every forward of the schedule; raises :class:`InvalidCase` where it brings two dtypes
    together.
    """
    for at in follow(case):
        if at.op.call:
            flow = _Flow(case, found, at.cast)
            flow.forward(at.op.call.target)
            yield flow


def trained_in_several_dtypes(case: Case, found: Inferred, frozen: Set[str]) -> Reasons:
    """Yield for which group parameters of several dtypes are trained if these are ``frozen``.

    ``fully_shard`` asserts against that (``_init_mp_dtypes`` in
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
    """
    for index, group in enumerate(case.wrap):
        own = (fqn for fqn, owner in found.owners.items() if owner == index)
        if len({stored_dtype(case, fqn, None) for fqn in own if fqn not in frozen}) > 1:
            yield (
                f"the group of {group.modules[0]!r} trains parameters of several dtypes",
                "freeze them, or put them into groups of their own",
            )


class _Flow(AgreeingWalk[DtypeOrIds]):
    """One forward, in dtypes."""

    what = "dtype"
    mend = "match them"

    def __init__(
        self,
        case: Case,
        found: Inferred,
        cast: Dtype | None,
        paths: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(case, found, paths)
        self.cast = cast
        self.casts = casts(case)
        self.ties = case.tied
        self.norms_half_precision = False
        self.calls: list[CallDtypes] = []
        self.made: dict[str, deque[CastHere]] = {}

    def forward(self, target: str) -> None:
        floats = self.cast or self.case.dtype
        inputs = tuple(None if v.ids else floats for v in self.found.input_values[target])
        self.call(target, self.found.modules[target], inputs)

    @override
    def module(
        self, path: str, module: Module, args: tuple[DtypeOrIds, ...]
    ) -> tuple[DtypeOrIds, ...]:
        cast = self.casts.get(path, Casts())
        inputs = tuple(d and (cast.inputs or d) for d in args)
        results = super().module(path, module, inputs)
        outputs = tuple(d and (cast.outputs or d) for d in results)
        self.calls.append(CallDtypes(path, inputs, outputs))
        here = CastHere(_differ(args, inputs), _differ(results, outputs))
        self.made.setdefault(path, deque()).append(here)
        return outputs

    @override
    def leaf(self, path: str, leaf: Leaf, arg: DtypeOrIds) -> DtypeOrIds:
        own = {
            self.parameter(join(path, name)) for name in leaf.parameters(self.found.width(path))
        }
        if not own:
            return arg
        result = leaf.result_dtype(arg, own)
        if result is None:
            has = " and ".join(sorted(own))
            raise InvalidCase(
                f"{path!r} has parameters of {has} and is called with {arg}",
                "give its group a precision that casts, or a dtype that fits",
            )
        if leaf.result_dtype(arg, own, on_cuda=True) is None:
            self.norms_half_precision = True
        return result

    def parameter(self, fqn: str) -> Dtype:
        return computing_dtype(self.case, self.found, self.ties.get(fqn, fqn), self.cast)

    @override
    def tensor_op(self, path: str, node: TensorOp, args: tuple[DtypeOrIds, ...]) -> DtypeOrIds:
        dtypes = [d for d in args if d is not None]
        if node.op == "attend" and len(set(dtypes)) > 1:
            raise InvalidCase(
                f"'attend' in block {path!r} joins {' and '.join(dtypes)}", "make them equal"
            )
        if node.op == "iadd":
            return dtypes[0]
        result = dtypes[0]
        for dtype in dtypes[1:]:
            result = promote(result, dtype)
        return result


class _EveryCall(_Flow):
    """One forward that follows every call, whatever it is called with."""

    @override
    def call(
        self, path: str, module: Module, args: tuple[DtypeOrIds, ...]
    ) -> tuple[DtypeOrIds, ...]:
        return self.module(path, module, args)


def _differ(before: Sequence[DtypeOrIds], after: Sequence[DtypeOrIds]) -> tuple[bool, ...]:
    return tuple(a != b for a, b in zip(before, after, strict=True))
