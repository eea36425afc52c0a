"""Which Cases are experiments: everything a rank would otherwise trip over, said in one line.

What torch itself refuses with a documented error is *not* checked here unless its reason can be
told better: such a case runs and is REJECTED with torch's own text.
"""

from __future__ import annotations

import math

from typing_extensions import override

from fuzzshard.case.arrivals import arrivals
from fuzzshard.case.batches import check_batches, least_rows
from fuzzshard.case.case import Case
from fuzzshard.case.check_options import check_options
from fuzzshard.case.communication import looks_at_unsharded
from fuzzshard.case.dtypes import gradients_are_like_zeros, steps_take_gradients
from fuzzshard.case.facts import Facts, facts, has_own_statistics
from fuzzshard.case.graph import Alias, Block, count_paths, resolve, walk
from fuzzshard.case.groups import (
    reached_roots,
    uses_outside_groups,
    wrapped_modules,
)
from fuzzshard.case.limits import LARGEST_DIM
from fuzzshard.case.optimized import shares
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.case.schedule_state import ScheduleState, ranks_differ
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engines import specs
from fuzzshard.parts.names import is_path
from fuzzshard.parts.op import Op


def validate(case: Case, world_size: int | None = None) -> Facts:
    """Raises :class:`InvalidCase` unless a world of ``world_size`` ranks can run ``case``."""
    if case.mesh.size > LARGEST_DIM:  # every shape of the mesh is looked at
        raise InvalidCase(f"the mesh has {case.mesh.size} ranks", f"use at most {LARGEST_DIM}")
    found = facts(case)
    _check_targets(case, found)
    check_options(case, found)
    check_batches(case, found)
    _check_sizes(case, found, world_size)
    _check_wrap(case, found)
    _check_ties(case)
    _check_checkpoints(case)
    check_schedule(case, found)
    return found


def check_schedule(case: Case, found: Facts) -> None:
    """Raises :class:`InvalidCase` where an op cannot be meant at its place; a part of
    :func:`validate`.
    """
    at = Checked(case, found)
    for freeze in case.freezes:
        at.check_has_parameters(freeze.target, "freeze")
    for op in case.schedule:
        at.check_any(op)
        op.check(at)
        at.advance()
    if not at.has_run:
        raise InvalidCase("the schedule has no forward", "add one")


def is_valid(case: Case) -> bool:
    """Whether some world can run ``case``."""
    try:
        validate(case)
    except InvalidCase:
        return False
    return True


def _check_targets(case: Case, found: Facts) -> None:
    """First of all: dtypes and layouts are followed through the forwards of the schedule."""
    for call in (op.call for op in case.schedule):
        if call and call.target not in found.modules:
            raise InvalidCase(
                f"forward names {call.target!r}, which is not a module", "use a path of the model"
            )
    num_paths = count_paths(found.modules)
    for op in case.schedule:
        if not is_path(op.target):
            raise InvalidCase(
                f"{op.tag} names {op.target!r}, which is no path", "use a path of the model"
            )
        if op.path is not None and not 0 <= op.path < num_paths.get(op.target, 0):
            raise InvalidCase(
                f"block {op.target!r} has no path {op.path}",
                "give one of its calls more alternatives",
            )


def _check_sizes(case: Case, found: Facts, world_size: int | None) -> None:
    mesh = case.mesh
    if world_size is not None and mesh.size > world_size:
        raise InvalidCase(
            f"the mesh needs {mesh.size} ranks and the world has {world_size}",
            f"run with --world-size {mesh.size} or more",
        )
    if case.inputs.batch < 1 or case.inputs.seq < 0:
        raise InvalidCase("batch must be at least 1 and seq at least 0", "change inputs")
    sizes = [case.inputs.batch, *(item.rows for item in case.inputs.rank_batches)]
    dims = [*sizes, case.inputs.seq, *(d for s in found.parameters.values() for d in s)]
    if max(dims) > LARGEST_DIM:
        raise InvalidCase(f"a tensor dimension is {max(dims)}", f"use at most {LARGEST_DIM}")
    if min((d for s in found.parameters.values() for d in s), default=1) < 1:
        raise InvalidCase("a parameter has a dimension of size 0", "use at least 1")
    if case.inputs.batch < least_rows(case, found):
        raise InvalidCase("a norm needs two values per channel", "use a batch of 2")
    if not case.engines:
        raise InvalidCase("the case names no engine", 'use engines=["fully_shard"]')


def _check_wrap(case: Case, found: Facts) -> None:
    wrapped: list[str] = []
    for group in case.wrap:
        if not group.modules:
            raise InvalidCase("a wrap group has no modules", "remove it")
        for path in group.modules:
            if path not in found.modules:
                raise InvalidCase(
                    f"wrap names {path!r}, which is not a module", "use a path of the model"
                )
            if path in wrapped:
                raise InvalidCase(f"{path!r} is wrapped twice", "wrap each module once")
            if above := [w for w in wrapped if is_within(path, w)]:
                raise InvalidCase(
                    f"{path!r} is wrapped after its ancestor {above[0]!r}", "wrap bottom-up"
                )
        if any(a != b and is_within(a, b) for a in group.modules for b in group.modules):
            raise InvalidCase(f"the modules of group {group.modules} are nested", "list siblings")
        wrapped.extend(group.modules)


def _check_ties(case: Case) -> None:
    """Below one FSDP root torch refuses parameters tied across groups; elsewhere it cannot see
    them.
    """
    if case.root_is_wrapped:
        return
    for tie in case.ties:
        managers = [
            next(
                (i for i, g in enumerate(case.wrap) if is_within_any(fqn, g.modules)),
                None,
            )
            for fqn in (tie.parameter, tie.source)
        ]
        if managers[0] != managers[1]:
            raise InvalidCase(
                f"{tie.parameter!r} is tied to {tie.source!r} in another group",
                "put both modules in one list group",
            )


def _check_checkpoints(case: Case) -> None:
    targets = {m.target for _, m in walk(case.model) if isinstance(m, Alias)}
    seen: set[str] = set()
    for checkpoint in case.checkpoints:
        path = checkpoint.module
        target = resolve(case.model, path)
        if target is None or target[0] != path or path in seen:
            raise InvalidCase(
                f"checkpoint names {path!r}, which is no module or named twice", "remove it"
            )
        seen.add(path)
        if (
            checkpoint.implementation != "utils"
            and isinstance(target[1], Block)
            and target[1].has_method
        ):
            raise InvalidCase(
                f"a checkpoint of {path!r} would not see its {target[1].method!r}", 'use "utils"'
            )
        if checkpoint.implementation == "utils" and not path:
            around = any(spec.wrapper for spec in specs(case.engines))
            if around or case.compile is not None:
                raise InvalidCase(
                    "where the root is called, DDP, FSDP1 or compile() are within its checkpoint",
                    'checkpoint it with "composable"',
                )
        if checkpoint.implementation == "wrapper" and (not path or is_within_any(path, targets)):
            raise InvalidCase(
                f"the checkpoint wrapper cannot replace {path!r}", 'use "composable"'
            )


class Checked(ScheduleState):
    """A run of a schedule that is checked, with what its ops ask of it."""

    def __init__(self, case: Case, found: Facts) -> None:
        super().__init__(case)
        self.found = found
        self.was_reduced_partly = False
        """Whether the last backward reduced gradients over one axis of the mesh only,
        somewhere.
        """
        self.with_gradients = frozenset[str]()
        """The parameters that have a gradient, reduced over all ranks, for certain; only known
        where losses are scaled.
        """
        self.unscaled = False
        """Whether the scale is out of the gradients of the next step."""
        self._wrapped = wrapped_modules(case)
        self._unfinished: frozenset[int] = frozenset()

    @override
    def advance(self, *, skipped: bool = False) -> None:
        taken, op, place = self.taken, self.op, self.index
        super().advance(skipped=skipped)
        if op.aborts or op.replaces_parameters or (op.zeroes_gradients and op.set_to_none):
            self.with_gradients = frozenset()
        self.unscaled |= op.unscales
        if op.updates or op.replaces_parameters:
            self.unscaled = False
        if op.takes:
            partly = self.off["requires_all_reduce"] & self._wrapped
            self.was_reduced_partly = self.case.mesh.replicate is not None and bool(partly)
            if self.case.optimizer.does("scales") and not self.is_partial:
                self.with_gradients |= self._gradients(place)
            reached = frozenset[int]().union(*(self._reached(each.call.target) for each in taken))
            waiting = {self.roots[i] for i in self._groups_of(self.off["is_last_backward"])}
            self._unfinished = (self._unfinished - reached) | (reached & waiting)
        if op.rebuilds:
            self._unfinished = frozenset()
        if self.case.finalize is not None:
            self._check_finalize(op)
        if (op.takes or op.aborts) and self.stepped:
            self._check_steps_in_backward(op)
        if op.updates and self._unfinished:
            raise InvalidCase(
                "a step follows a backward with is_last_backward=False",
                "it is for backwards that another one follows before the step",
            )

    def _check_steps_in_backward(self, op: Op) -> None:
        """A step is for sharded parameters that no graph needs any more, as any other is."""
        if op.aborts:
            raise InvalidCase(
                "parameters change within backwards, and one ends with an exception",
                "nothing says which of them it has reached: leave one of the two out",
            )
        if self.pending or op.retains:
            raise InvalidCase(
                "parameters change within a backward, and another one needs them",
                "autograd refuses parameters that were changed in place: run it first",
            )
        if self.off["reshard_after_backward"] or self._unfinished:
            raise InvalidCase(
                "parameters change within a backward that leaves them unsharded, or its reduction "
                "unfinished",
                "let backwards reshard and finish",
            )
        if self.case.optimizer.does("scales"):
            raise InvalidCase(
                "a GradScaler, and steps within backwards that take scaled gradients",
                "leave one of the two out",
            )

    @property
    def is_partial(self) -> bool:
        """Whether the last backward left some gradients to reduce, over some axis of the mesh."""
        return self.unsynced or self.was_reduced_partly

    def _reached(self, target: str) -> frozenset[int]:
        return reached_roots(self.case, self.found, target, self.roots)

    def _gradients(self, place: int) -> frozenset[str]:
        """The parameters that a backward brings gradients."""
        try:
            return arrivals(self.case)[place]
        except (LookupError, AttributeError):  # a later op names what is not there, as it will say
            return frozenset(self.found.parameters)

    def _check_finalize(self, op: Op) -> None:
        """What ``finalize_backward`` is not for (its docstring).

        It is in torch/distributed/fsdp/_fully_shard/_fully_shard.py.
        """
        if not self.case.root_is_wrapped:
            raise InvalidCase(
                "backward is finalized by hand and the root is not wrapped", "wrap it"
            )
        if op.takes and self.pending:
            raise InvalidCase(
                '"Do not call it between forward and backward"', "leave no forward pending"
            )
        if self.off["requires_all_reduce"] and self.case.mesh.replicate is not None:
            raise InvalidCase(
                '"Partial gradient reduction for replicate() and HSDP is not supported"',
                "remove the flag",
            )

    def check_any(self, op: Op) -> None:
        """What holds of every op that names, replaces or loads something."""
        if op.recurse is False and op.target not in self._wrapped:
            raise InvalidCase(
                f"{op.tag} names {op.target!r}, which is not wrapped", "wrap it or recurse"
            )
        if self.lacks_reshard:
            raise InvalidCase(
                f"{op.tag} is for sharded parameters, and some may be unsharded",
                'reshard before it: {"type": "reshard"}',
            )
        if self.pending and (op.casts_to or op.corrupts or op.loads):
            raise InvalidCase(
                "parameters are replaced between a forward and its backward",
                "autograd refuses parameters that were changed in place: move the op",
            )
        if self.saved is None and (op.corrupts or op.loads):
            raise InvalidCase("a state is loaded or corrupted before any was saved", "save first")
        if self.saving and (op.via or op.loads):
            raise InvalidCase("a save is not finished yet", "wait for it: wait_for_save")

    def check_mesh(self, axes: tuple[int, ...]) -> None:
        """A model of this case can be built on a mesh with these data-parallel axes."""
        ranks = self.case.mesh.data_size
        if len(axes) > 2 or math.prod(axes) != ranks:
            raise InvalidCase(
                f"{list(axes)} is no mesh of the {ranks} data-parallel ranks",
                "give (shard,) or (replicate, shard): every rank keeps its data",
            )
        check_options(self.case.on(axes), self.found)

    def check_recomputes(self, what: str) -> None:
        """``what`` cannot change now if a checkpointed forward is to be computed again."""
        if self.pending and self.case.checkpoints:
            raise InvalidCase(
                f"{what} changes between a checkpointed forward and its backward",
                "torch.utils.checkpoint must recompute what it computed: move the op",
            )

    def check_requires_grad(self) -> None:
        """``requires_grad`` cannot change now if groups go by that of their unsharded
        parameters.
        """
        self.check_recomputes("requires_grad")
        if self.pending and looks_at_unsharded(self.case):
            raise InvalidCase(
                "requires_grad changes between a forward and its backward, which goes by that of "
                "before",
                "zeros_for_unused and no_backward_unshard do not say what then: move the op",
            )

    def check_steps_take_gradients(self) -> None:
        """A step takes gradients of another dtype than that of the parameter, or there is none.

        With ``foreach`` some pass where torch takes them for states ("Tensors of the same index
        must be on the same device and the same dtype except [...]",
        ``_group_tensors_by_device_and_dtype``); a ``GradScaler`` takes none of float16
        ("Attempting to unscale FP16 gradients.", torch/amp/grad_scaler.py).
        """
        steps = any(op.updates or op.stepped for op in self.case.schedule)
        if steps and not steps_take_gradients(self.case, self.found):
            raise InvalidCase(
                f"steps of {self.case.optimizer.title} take no gradients of another dtype than "
                "that of the parameter",
                "torch/optim mixes both with the state of a parameter in one op or list, and a "
                "GradScaler takes none of float16: set another grad_dtype, or another optimizer",
            )

    def check_scaled(self) -> None:
        """A ``GradScaler`` steps where gradients of one kind are there ("No inf checks were
        recorded for this optimizer", torch/amp/grad_scaler.py).
        """
        if not self.case.optimizer.does("scales"):
            return
        partly = self.is_partial or ranks_differ(self.case)
        lacks = not all(shares(self.case.optimizer, self.with_gradients))
        if lacks or partly or self.case.optimizer.left_out:
            raise InvalidCase(
                "a step of a GradScaler may have no gradients", "put a backward before it"
            )
        if self.case.tensor_parallel or (self.case.wrap and None in self.found.owners.values()):
            raise InvalidCase(
                "a GradScaler has gradients of several kinds", "wrap the root, on one axis"
            )
        if self.case.optimizer.scheduler:
            raise InvalidCase(
                "a scheduler steps after a step that a GradScaler may skip, and torch warns",
                "use one of them",
            )

    def check_takes_zeros(self) -> None:
        """A checkpoint of an optimizer without states makes a step on zeros, from which the states
        take their dtypes.
        """
        if not gradients_are_like_zeros(self.case, self.found):
            raise InvalidCase(
                "a checkpoint of parameters with gradients of another dtype",
                "torch/distributed/checkpoint/state_dict.py, _init_optim_state, gives parameters "
                'zeros of their own dtype as gradients: save via "state_dict"',
            )

    def check_one_copy(self) -> None:
        """A checkpoint must be the same on every rank."""
        if has_own_statistics(self.case):
            raise InvalidCase(
                "a checkpoint holds one copy of the statistics of a batch norm, and every rank "
                "has its own",
                'save via "state_dict", or give all ranks the same inputs and drop nothing out',
            )
        if any(op.toggle and op.ranks != "all" for op in self.case.schedule):
            raise InvalidCase(
                "a checkpoint of parameters that only some ranks freeze",
                "torch.distributed.checkpoint needs the same keys on every rank: freeze on all",
            )

    def check_has_parameters(self, target: str, what: str) -> None:
        """``what`` must name a module or parameter."""
        if not self.parameters_at(target):
            raise InvalidCase(
                f"{what} names {target!r}, which has no parameters", "use a module or parameter"
            )

    def check_called_alone(self, target: str) -> None:
        """A forward of ``target`` must get values that it can take, and gather all that it
        uses.
        """
        if any(value.patches for value in self.found.input_values[target]):
            raise InvalidCase(
                f"a forward of {target!r} would need patches as input", "call the root"
            )
        called = self.found.modules[target]
        if (
            self.case.inputs.on_host
            and isinstance(called, Block)
            and called.passing == "dataclass"
        ):
            # they do in tuples and dicts (``_recursive_to`` in torch/distributed/utils.py)
            raise InvalidCase(
                "engines do not move tensors inside a dataclass", "pass the inputs another way"
            )
        tied = {tie.source for tie in self.case.ties}
        for path, fqn in uses_outside_groups(self.case, self.found, target):
            if target == "" and fqn in tied and self.case.root_is_wrapped:
                continue  # torch refuses parameters that are tied across groups, with its own text
            raise InvalidCase(
                f"forward of {target!r} uses {fqn!r} in {path!r}, outside the group that manages "
                "it",
                f"wrap {target or path!r} itself",
            )
