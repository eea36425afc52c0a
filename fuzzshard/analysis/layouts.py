"""How activations lie on the tensor-parallel ranks, and whether every module and op can work on
them so.

A plain tensor that is a shard looks like any other tensor: torch computes with it and cannot know
what is meant. DTensors know their layout, but do not mix with plain tensors ("got mixed
torch.Tensor and DTensor", torch/distributed/tensor/_dispatch.py). :func:`check_layouts` follows
the layouts through the graph, from a forward of the schedule, and says where a case would not
compute what the plain model does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from typing_extensions import override

from fuzzshard.analysis.batches import told_rows
from fuzzshard.analysis.forward_walk import AgreeingWalk
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.tensor_parallel import dim_along, values_of
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Module, TensorOp
from fuzzshard.case.options import Along, TensorParallel
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Leaf, Value

_DIMS: dict[int | None, Along | None] = {None: None, -1: "features", 0: "rows", 1: "sequence"}


class Layout(NamedTuple):
    """What every rank holds of a value of ``width`` features: all of it, or a part along an
    axis.
    """

    width: int
    sharded: Along | None = None
    is_dtensor: bool = False

    def __str__(self) -> str:
        part = f"sharded along its {self.sharded}" if self.sharded else "whole on every rank"
        return f"a {'DTensor' if self.is_dtensor else 'plain tensor'} {part}"


def layouts_within(
    case: Case, found: Inferred
) -> Mapping[tuple[str, tuple[Layout, ...]], tuple[Layout, ...]]:
    """Return the layouts that each module returns in a forward of the root, by those that it is
    called with.
    """
    flow = _Flow(case, found)
    flow.forward("")
    return flow.seen


def check_layouts(case: Case, found: Inferred, target: str) -> None:
    """Raises :class:`InvalidCase` where a forward of ``target`` meets a layout it cannot compute
    with.
    """
    if case.tensor_parallel:
        _Flow(case, found).forward(target)


class _Flow(AgreeingWalk[Layout]):
    """Forwards, in layouts."""

    what = "layout"
    mend = "plan them alike"

    def __init__(self, case: Case, found: Inferred) -> None:
        super().__init__(case, found)
        self.ranks = case.mesh.tensor or 1
        self.plans = {plan.module: plan for plan in case.tensor_parallel if plan.is_of_leaf}
        self.of_blocks: Mapping[tuple[str, str], TensorParallel]
        self.of_blocks = {(plan.module, plan.style): plan for plan in case.tensor_parallel}

    def forward(self, target: str) -> None:
        """A forward gets whole inputs; of a DTensor that it returns the whole is looked at."""
        args = tuple(Layout(value.size) for value in self.found.input_values[target])
        for layout in self.call(target, self.found.modules[target], args):
            if layout.sharded and not layout.is_dtensor:
                raise InvalidCase(
                    f"a forward of {target!r} returns {layout}",
                    'give its last module output="replicate", or local_output=False',
                )

    @override
    def module(self, path: str, module: Module, args: tuple[Layout, ...]) -> tuple[Layout, ...]:
        args = self.prepared(path, module, "prepare", args)
        return self.prepared(path, module, "prepare_output", super().module(path, module, args))

    def prepared(
        self, path: str, module: Module, style: str, values: tuple[Layout, ...]
    ) -> tuple[Layout, ...]:
        """Return what ``PrepareModuleInput`` makes of arguments, or ``PrepareModuleOutput`` of
        results.
        """
        plan = self.of_blocks.get((path, style))
        if plan is None or not isinstance(module, Block):
            return values
        named = zip(*values_of(plan, module, self.found), values, strict=True)
        return tuple(
            self.laid(plan, value, given) if name in plan.prepared else given
            for name, value, given in named
        )

    def laid(self, plan: TensorParallel, value: Value, given: Layout) -> Layout:
        """Return one of them. A DTensor is redistributed if what is told of a plain tensor is not
        what is desired.
        """
        if not given.is_dtensor and given.sharded != plan.takes:
            raise InvalidCase(
                f"{plan.module!r} prepares {given} as one {plan.takes or 'whole'}",
                "change its input layout, or the plan of the module before",
            )
        told = dim_along(plan, plan.takes, value, self.case.inputs.seq)
        sharded = _DIMS[plan.dim] if told != plan.dim or not given.is_dtensor else given.sharded
        return self.returned(plan, Layout(given.width, sharded, not plan.local_output))

    @override
    def leaf(self, path: str, leaf: Leaf, arg: Layout) -> Layout:
        width = self.found.output_values[path][0].size
        if path in self.plans:
            return self.planned(self.plans[path], arg, width)
        if "elementwise" in leaf.styles or leaf.drops == 0:
            return arg
        if arg.sharded or arg.is_dtensor:
            raise InvalidCase(
                f"{path!r} has no tensor-parallel plan and is called with {arg}",
                "add a plan for it, or let the module before return a replicated tensor",
            )
        return Layout(width)

    def planned(self, plan: TensorParallel, arg: Layout, width: int) -> Layout:
        """Return the module makes a DTensor of a plain tensor, which it believes to lie as its
        input layout says.
        """
        wanted = plan.takes
        if not arg.is_dtensor and arg.sharded != wanted:
            raise InvalidCase(
                f"{plan.module!r} wants {arg._replace(sharded=wanted)} and is called with {arg}",
                "change the input layout of its plan, or the output layout of the module before "
                "it",
            )
        return self.returned(plan, Layout(width, plan.gives, not plan.local_output))

    def returned(self, plan: TensorParallel, result: Layout) -> Layout:
        """Return ``result``, whose parts are even if a rank has nothing but its own one."""
        sizes: dict[Along | None, Iterable[int]] = {
            None: (),
            "features": (result.width,),
            "sequence": (self.case.inputs.seq,),
            "rows": told_rows(self.case),
        }
        uneven = [size for size in sizes[result.sharded] if size % self.ranks]
        if uneven and not result.is_dtensor:
            raise InvalidCase(
                f"{plan.module!r} makes {result} of {uneven[0]}, which {self.ranks} ranks "
                "cannot share evenly",
                "use local_output=False: DTensor.from_local takes plain shards to be of one size",
            )
        return result

    @override
    def tensor_op(self, path: str, node: TensorOp, args: tuple[Layout, ...]) -> Layout:
        """Ops work on what a rank holds, so all that they join must lie alike.

        A local output is a view made by a ``torch.autograd.Function``, which nothing may change in
        place.
        """
        first = args[0]
        if len({(arg.sharded, arg.is_dtensor) for arg in args}) > 1:
            kinds = " and ".join(dict.fromkeys(map(str, args)))
            raise InvalidCase(
                f"{node.op!r} in block {path!r} joins {kinds}", "make their layouts alike"
            )
        local = first.width // self.ranks if first.sharded == "features" else first.width
        possible = {
            "concat": first.sharded != "features",
            "attend": not first.is_dtensor
            and first.sharded != "sequence"
            and local % node.head_dim == 0,
            "iadd": False,
        }
        if not possible.get(node.op, True):
            raise InvalidCase(
                f"{node.op!r} in block {path!r} cannot work on {first}", "change the plan"
            )
        width = sum(arg.width for arg in args) if node.op == "concat" else first.width
        return first._replace(width=width)
