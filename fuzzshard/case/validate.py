"""Which Cases are experiments: everything a rank would otherwise trip over, said in one line.

What torch itself refuses with a documented error is *not* checked here unless its reason can be told
better: such a case runs and is REJECTED with torch's own text.
"""

from __future__ import annotations

from fuzzshard.case.batches import check_batches
from fuzzshard.case.case import Case
from fuzzshard.case.check_options import check_options, count_paths
from fuzzshard.case.check_states import check_states
from fuzzshard.case.communication import looks_at_unsharded
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.graph import Alias, Block, resolve, walk
from fuzzshard.case.groups import (
    calls_of,
    reached_roots,
    root_groups,
    root_is_wrapped,
    uses_outside_groups,
    wrapped_modules,
)
from fuzzshard.case.paths import is_within
from fuzzshard.case.progress import modules_named
from fuzzshard.case.schedule import (
    Abort,
    Backward,
    Cast,
    ClipGradNorm,
    CorruptState,
    Forward,
    LoadState,
    Op,
    Reshard,
    SetDivideFactor,
    SetFlag,
    SetMode,
    SetPath,
    SetRequiresGrad,
    Step,
    Unshard,
)
from fuzzshard.errors import InvalidCase

LARGEST_DIM = 4096
"""No tensor dimension of a case may exceed this: a hand-edited case must not exhaust a machine."""


def validate(case: Case, world_size: int | None = None) -> Facts:
    """Raises :class:`InvalidCase` unless a world of ``world_size`` ranks can run ``case``."""
    found = facts(case)
    _check_targets(case, found)
    check_options(case, found)
    check_batches(case, found)
    _check_sizes(case, found, world_size)
    _check_wrap(case, found)
    _check_ties(case)
    _check_checkpoints(case)
    for freeze in case.freezes:
        _check_parameters_at(found, freeze.target, "freeze")
    check_states(case)
    _check_schedule(case, found)
    return found


def _check_targets(case: Case, found: Facts) -> None:
    """First of all: dtypes and layouts are followed through the forwards of the schedule."""
    for op in case.schedule:
        if isinstance(op, Forward) and op.target not in found.modules:
            raise InvalidCase(
                f"forward names {op.target!r}, which is not a module", "use a path of the model"
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
    rows = case.inputs.batch * max(case.inputs.seq, 1)
    if rows < 2 and found.batch_norms:
        raise InvalidCase("batch norm needs two values per channel", "use a batch of 2")
    if not case.engines:
        raise InvalidCase("the case names no engine", 'use engines=["fully_shard"]')


def _check_wrap(case: Case, found: Facts) -> None:
    wrapped: list[str] = []
    for group in case.wrap:
        if not group.modules:
            raise InvalidCase("a wrap group has no modules", "remove it")
        for path in group.modules:
            if path not in found.modules:
                raise InvalidCase(f"wrap names {path!r}, which is not a module", "use a path of the model")
            if path in wrapped:
                raise InvalidCase(f"{path!r} is wrapped twice", "wrap each module once")
            if above := [w for w in wrapped if is_within(path, w)]:
                raise InvalidCase(f"{path!r} is wrapped after its ancestor {above[0]!r}", "wrap bottom-up")
        if any(a != b and is_within(a, b) for a in group.modules for b in group.modules):
            raise InvalidCase(f"the modules of group {group.modules} are nested", "list siblings")
        wrapped.extend(group.modules)
        raf = group.reshard_after_forward
        if isinstance(raf, int) and not isinstance(raf, bool) and (raf < 1 or case.mesh.shard % raf):
            raise InvalidCase(
                f"reshard_after_forward={raf} does not divide the shard axis of size {case.mesh.shard}",
                "use a divisor",
            )


def _check_ties(case: Case) -> None:
    """Below one FSDP root torch refuses parameters tied across groups; elsewhere it cannot see them."""
    if root_is_wrapped(case):
        return
    for tie in case.ties:
        managers = [
            next((i for i, g in enumerate(case.wrap) if any(is_within(fqn, m) for m in g.modules)), None)
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
            raise InvalidCase(f"checkpoint names {path!r}, which is no module or named twice", "remove it")
        seen.add(path)
        if (
            checkpoint.implementation != "utils"
            and isinstance(target[1], Block)
            and target[1].method != "forward"
        ):
            raise InvalidCase(
                f"a checkpoint of {path!r} would not see its {target[1].method!r}", 'use "utils"'
            )
        if checkpoint.implementation == "utils" and not path:
            around = {"ddp", "fsdp1"}.intersection(case.engines)
            if around or case.compile is not None:
                raise InvalidCase(
                    "where the root is called, DDP, FSDP1 or compile() are within its checkpoint",
                    'checkpoint it with "composable"',
                )
        if checkpoint.implementation == "wrapper" and (not path or any(is_within(path, t) for t in targets)):
            raise InvalidCase(f"the checkpoint wrapper cannot replace {path!r}", 'use "composable"')


def _check_parameters_at(found: Facts, target: str, what: str) -> None:
    if not any(is_within(fqn, target) for fqn in found.parameters):
        raise InvalidCase(f"{what} names {target!r}, which has no parameters", "use a module or parameter")


def _check_schedule(case: Case, found: Facts) -> None:
    wrapped = wrapped_modules(case)
    pending: list[str] = []
    flags: dict[tuple[str, str], bool] = {}
    roots = {m: root for root, g in zip(root_groups(case), case.wrap, strict=True) for m in g.modules}
    unfinished: dict[int, set[str]] = {}
    partly = False
    paths = count_paths(found.modules)
    for op in case.schedule:
        if pending and isinstance(op, Cast | CorruptState | LoadState):
            raise InvalidCase(
                "parameters are replaced between a forward and its backward",
                "autograd refuses parameters that were changed in place: move the op",
            )
        if isinstance(op, Abort):
            _check_abort(case, found, op, pending)
        if isinstance(op, SetPath) and not 0 <= op.path < paths.get(op.target, 0):
            raise InvalidCase(
                f"block {op.target!r} has no path {op.path}", "give one of its calls more alternatives"
            )
        if isinstance(op, SetDivideFactor | ClipGradNorm) and min(_positive(op)) <= 0:
            raise InvalidCase("a divide factor or a norm is not positive", "use a positive number")
        if isinstance(op, SetDivideFactor | Unshard | Reshard):
            _targeted(case, op, wrapped)
        if isinstance(op, SetDivideFactor) and partly:
            raise InvalidCase(
                "a divide factor changes while gradients are reduced over one axis of the mesh only",
                "part of a sum is divided already: move the op",
            )
        if pending and isinstance(op, SetRequiresGrad) and looks_at_unsharded(case):
            raise InvalidCase(
                "requires_grad changes between a forward and its backward, which goes by that of before",
                "zeros_for_unused and no_backward_unshard do not say what then: move the op",
            )
        if pending and case.checkpoints and isinstance(op, SetMode | SetRequiresGrad | SetPath):
            raise InvalidCase(
                "the mode, a path or requires_grad changes between a checkpointed forward and its backward",
                "torch.utils.checkpoint must recompute what it computed: move the op",
            )
        if isinstance(op, Forward):
            _check_forward(case, found, op)
            pending += [op.target] if op.grad else []
        elif isinstance(op, Backward):
            if not pending:
                raise InvalidCase("a backward has no pending forward", "put a forward before it")
            done = {"all": pending, "oldest": pending[:1], "newest": pending[-1:]}[op.which]
            pending = {"all": [], "oldest": pending[1:], "newest": pending[:-1]}[op.which]
            partly = case.mesh.replicate is not None and any(
                flag == "requires_all_reduce" and not value for (flag, _), value in flags.items()
            )
            for root in frozenset().union(*(reached_roots(case, found, target) for target in done)):
                off = {flag for (flag, module), value in flags.items() if not value and roots[module] == root}
                unfinished[root] = off & {"is_last_backward", "reshard_after_backward"}
        elif isinstance(op, SetRequiresGrad):
            _check_parameters_at(found, op.target, "set_requires_grad")
        elif isinstance(op, SetFlag):
            for module in _targeted(case, op, wrapped):
                flags[op.flag, module] = op.value
        if case.finalize is not None:
            _check_finalize(case, op, pending)
        if isinstance(op, Step) and (bad := set().union(*unfinished.values())):
            raise InvalidCase(
                f"a step follows a backward with {min(bad)}=False",
                "both are for backwards that another one follows before the step",
            )
    if not any(isinstance(op, Forward) for op in case.schedule):
        raise InvalidCase("the schedule has no forward", "add one")


def _check_finalize(case: Case, op: Op, pending: list[str]) -> None:
    """What ``finalize_backward`` is not for (its docstring).

    It is in torch/distributed/fsdp/_fully_shard/_fully_shard.py.
    """
    if not root_is_wrapped(case):
        raise InvalidCase("backward is finalized by hand and the root is not wrapped", "wrap it")
    if isinstance(op, Backward) and pending:
        raise InvalidCase('"Do not call it between forward and backward"', "leave no forward pending")
    partial = isinstance(op, SetFlag) and op.flag == "requires_all_reduce" and not op.value
    if partial and case.mesh.replicate is not None:
        raise InvalidCase(
            '"Partial gradient reduction for replicate() and HSDP is not supported"', "remove the flag"
        )


def _check_abort(case: Case, found: Facts, op: Abort, pending: list[str]) -> None:
    """``reset_iter_state`` is for the FSDP root, and what it resets for a whole iteration."""
    if not root_is_wrapped(case):
        raise InvalidCase("an iteration is aborted and the root is not wrapped", "wrap it")
    if pending:
        raise InvalidCase("an iteration is aborted while a forward is pending", "move the op")
    if case.checkpoints or case.compile is not None:
        raise InvalidCase(
            "an iteration is aborted under activation checkpointing or compile()",
            "neither says that it can go on after an exception: remove one of the two",
        )
    if op.target not in calls_of(case, "") or isinstance(found.modules[op.target], Block):
        raise InvalidCase(f"{op.target!r} is no module that the forward calls to compute", "name one")


def _positive(op: SetDivideFactor | ClipGradNorm) -> tuple[float, ...]:
    return (op.factor,) if isinstance(op, SetDivideFactor) else (op.max_norm, op.norm_type)


def _targeted(
    case: Case, op: SetFlag | SetDivideFactor | Unshard | Reshard, wrapped: frozenset[str]
) -> list[str]:
    """The wrapped modules that an op is for."""
    if not op.recurse and op.target not in wrapped:
        what = str(op.__struct_config__.tag)
        raise InvalidCase(f"{what} names {op.target!r}, which is not wrapped", "wrap it or recurse")
    return modules_named(case, wrapped, op.target, recurse=op.recurse)


def _check_forward(case: Case, found: Facts, op: Forward) -> None:
    if any(value.patches for value in found.input_values[op.target]):
        raise InvalidCase(f"a forward of {op.target!r} would need patches as input", "call the root")
    outputs = len(found.output_values[op.target])
    if op.outputs is not None and (not op.outputs or any(not 0 <= i < outputs for i in op.outputs)):
        raise InvalidCase(f"forward uses outputs {op.outputs} of {outputs}", "use indices that exist")
    tied = {tie.source for tie in case.ties}
    for path, fqn in uses_outside_groups(case, found, op.target):
        if op.target == "" and fqn in tied and root_is_wrapped(case):
            continue  # torch refuses parameters that are tied across groups, with its own text
        raise InvalidCase(
            f"forward of {op.target!r} uses {fqn!r} in {path!r}, outside the group that manages it",
            f"wrap {op.target or path!r} itself",
        )
