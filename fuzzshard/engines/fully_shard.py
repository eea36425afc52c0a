"""``fully_shard`` (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from typing_extensions import override

from fuzzshard.case.batches import only_some_ranks_have_rows
from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import model_policy, stored_dtype
from fuzzshard.case.facts import facts
from fuzzshard.case.in_place import changed_outputs
from fuzzshard.case.no_rows import has_other_graph_without_rows
from fuzzshard.case.schedule_state import follow
from fuzzshard.case.sync_flags import UNMANAGED, SyncFlags, flags_set
from fuzzshard.contracts import CHANGES_BETWEEN_FORWARD_AND_BACKWARD
from fuzzshard.engines import fully_shard_options as options
from fuzzshard.engines.base import Engine
from fuzzshard.engines.exclusion import OTHER_GRAPH_ON_ONE_RANK, Exclusion
from fuzzshard.engines.fully_shard_state import (
    GroupState,
    group_state,
    param_groups,
    unreduced_gradient,
)
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.sync import ExplicitSync
from fuzzshard.engines.tensor_parallel import parallelize_tensors
from fuzzshard.instruments import GROUP_STATES, UNREDUCED, UNSHARDED_MEMORY, reading, works
from fuzzshard.model.build import build_model
from fuzzshard.parts.op import Below, Switch

FSDP1_POLICY = Exclusion(
    "the mixed precision of the case is that of FSDP1",
    "fuzzshard: one policy for the whole model, and the reference follows one engine's",
)
VIEW_ON_ONE_RANK = Exclusion(
    "an output changed in place may be a view, and so refused, on the rank without rows alone",
    "_fsdp_state.py, _register_pre_backward_hook: 'An in-place op on this view ... will silently "
    "drop the "
    "pre-backward hook'; whether an output is a view, only torch knows, and the other ranks would "
    "wait",
)
MODIFIED_MEANWHILE = Exclusion(
    "parameters are modified between a forward and its backward",
    CHANGES_BETWEEN_FORWARD_AND_BACKWARD.source,
)
CAST_LATER = Exclusion(
    "parameters are cast after the first forward",
    "_fsdp_param_group.py, lazy_init: 'Initialize mixed precision attributes lazily in case the "
    "user changes "
    "the parameter dtypes after construction time but before forward'",
)


def not_applicable(case: Case) -> Exclusion | None:
    """Why ``fully_shard``'s documented contract does not cover a case, or None.

    In which releases parameters may be modified between a forward and its backward is in
    :mod:`fuzzshard.contracts`.
    """
    if model_policy(case) is not None:
        return FSDP1_POLICY
    if (name := options.lacking(case)) is not None:
        return Exclusion(
            f"this version of torch has no {name}",
            f"torch/distributed/fsdp/_fully_shard: there is no {name}",
        )
    wrapped = [path for group in case.wrap for path in group.modules]
    if not changed_outputs(case).isdisjoint(wrapped) and only_some_ranks_have_rows(case):
        return VIEW_ON_ONE_RANK
    if has_other_graph_without_rows(case, wrapped):
        return OTHER_GRAPH_ON_ONE_RANK
    if not CHANGES_BETWEEN_FORWARD_AND_BACKWARD.holds() and _modifies_awaited(case):
        return MODIFIED_MEANWHILE
    initialized = False
    for at in follow(case):
        op = at.op
        stored = {
            stored_dtype(case, fqn, at.cast) for fqn in facts(case).parameters if op.casts_to
        }
        if initialized and not stored <= {op.casts_to}:
            return CAST_LATER
        initialized = not op.rebuilds and (initialized or op.begins is not None or op.gathers)
    return None


def _modifies_awaited(case: Case) -> bool:
    """Whether parameters change after a forward of which the backward comes later."""
    changed = -1
    for at in follow(case):
        if at.op.updates or at.op.loads or at.op.corrupts:
            changed = at.index
        if any(forward.place < changed for forward in at.taken):
            return True
    return False


class FullyShard(Engine):
    """Applies the wrap groups in order; what no group manages is averaged by hand."""

    name: ClassVar[str] = "fully_shard"
    reregisters: ClassVar[bool] = True

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype) -> None:
        super().__init__(case, mesh, dtype)
        self.flags = SyncFlags(case)
        unmanaged: dict[str, int | None] = {
            fqn: owner for fqn, owner in self.facts.owners.items() if owner is UNMANAGED
        }
        self.sync = ExplicitSync(mesh, unmanaged, self.flags)
        self._must_wait = mesh.device.type == "cuda" and "is_last_backward" in flags_set(case)

    @override
    def build(self) -> nn.Module:
        device = torch.device("meta") if self.case.init == "meta" else self.mesh.device
        model = build_model(self.case, device, self.dtype)
        if self.mesh.tensor_mesh is not None:
            parallelize_tensors(self.case, model, self.mesh.tensor_mesh)
        return model

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        ignored = {
            self.parameter(fqn) for fqn, owner in self.facts.owners.items() if owner is UNMANAGED
        }
        for group in self.case.wrap:
            modules = [model.get_submodule(path) for path in group.modules]
            fully_shard(
                modules[0] if len(modules) == 1 else modules,
                mesh=self.mesh.data_mesh,
                **options.arguments(group, ignored if self.case.ignored else set()),
            )
        self._parts = self._find_parts(model)
        options.set_prefetches(self.case, model)
        options.set_communication(self.case, model, self.mesh)
        if self.case.finalize is not None:
            root: Any = options.wrapped(model, "")
            root.set_manual_backward_finalization(True)
        options.register_methods(self.facts, model)
        if self.case.init == "meta":
            options.materialize(self.case, self.facts, model, super().build(), self.mesh.device)
        if self.case.compile is not None:
            options.compile_root(self.case, model)
        return model

    def _wrapped(self, below: Below) -> Iterator[FSDPModule]:
        target = self.model.get_submodule(below.target)
        for module in target.modules() if below.recurse else [target]:
            if isinstance(module, FSDPModule):
                yield module

    @override
    def set_flag(self, switch: Switch) -> None:
        """As users do it: the setters of a wrapped module go through those below it themselves."""
        self.flags.set(switch)
        target = self.model.get_submodule(switch.below.target)
        if switch.flag == "is_last_backward":
            for module in self._wrapped(switch.below):
                module.set_is_last_backward(switch.value)
        elif isinstance(target, FSDPModule):
            getattr(target, f"set_{switch.flag}")(switch.value, recurse=switch.below.recurse)
        else:
            for module in self._wrapped(switch.below):
                getattr(module, f"set_{switch.flag}")(switch.value, recurse=False)

    @override
    def set_divide_factor(self, factor: float, below: Below) -> None:
        self.flags.set_divisor(factor, below)
        for module in self._wrapped(below):
            options.set_divide_factor(module, factor, self.case.mesh.shard, self.mesh.device)

    @override
    def unshard(self, below: Below, *, async_op: bool, wait: bool) -> None:
        """Waits if it is told to: "FSDP will wait on the pending unshard in the module's
        pre-forward".
        """
        handles = [module.unshard(async_op=async_op) for module in self._wrapped(below)]
        for handle in handles if wait else ():
            if handle is not None:
                handle.wait()

    @override
    def reshard(self, below: Below) -> None:
        for module in self._wrapped(below):
            module.reshard()

    @override
    def finalize_backward(self) -> None:
        if self.case.finalize is None:
            return
        root: Any = options.wrapped(self.model, "")
        if self.case.finalize == "async":
            root.finalize_backward(async_op=True).wait()
        else:
            root.finalize_backward()

    @override
    def recover(self) -> None:
        options.wrapped(self.model, "").reset_iter_state()
        self.sync.forget()

    @override
    def record_post_optim_event(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_post_hook(
            lambda *args: options.hand_over_event(self.case, self.model, self.mesh.device)
        )

    @override
    def before_backward(self) -> None:
        self.sync.before_backward(self.trained)

    @override
    def after_backward(self) -> None:
        self.sync.after_backward(self.trained, set())

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Only the last backward waits for reductions (``set_is_last_backward``); else the reader
        must.
        """
        if self._must_wait:
            torch.cuda.synchronize(self.mesh.device)
        return super().gradients()

    def _find_parts(self, model: nn.Module) -> dict[str, Any]:
        """What ``fully_shard`` holds of each parameter that it manages, where some instrument
        looks at it.
        """
        instrument = next(
            (i for i in (UNREDUCED, GROUP_STATES, UNSHARDED_MEMORY) if works(i)), None
        )
        if instrument is None:
            return {}
        with reading(instrument):
            parts = {
                part.sharded_param: part
                for group in param_groups(model)
                for part in group.fsdp_params
            }
            return {
                fqn: parts[self.parameter(fqn)]
                for fqn, owner in self.facts.owners.items()
                if owner is not UNMANAGED
            }

    @override
    def unreduced_gradients(self) -> dict[str, torch.Tensor | None]:
        if not works(UNREDUCED):
            return {}
        with reading(UNREDUCED):
            return {fqn: unreduced_gradient(part) for fqn, part in self._parts.items()}

    @override
    def group_states(self) -> dict[int, GroupState]:
        """Of the groups that manage what they should: others are for the registration oracle to
        tell.
        """
        if not (works(GROUP_STATES) or works(UNSHARDED_MEMORY)):
            return {}
        names = {id(part): fqn for fqn, part in self._parts.items()}
        with reading(GROUP_STATES if works(GROUP_STATES) else UNSHARDED_MEMORY):
            known = [
                g
                for g in param_groups(self.model)
                if all(id(part) in names for part in g.fsdp_params)
            ]
        owners = self.facts.owners
        states = {}
        for group in known:
            owner = owners[names[id(group.fsdp_params[0])]]
            if owner is not UNMANAGED:
                states[owner] = group_state(group, names)
        return states

    @override
    def before_change(self) -> None:
        """Reshards what is not sharded, as the docstring of ``fully_shard`` asks for.

        "To modify the parameters between forward and backward, the registered parameters must be
        the sharded parameters. For False or an int, this can be done by manually resharding via
        reshard()."
        """
        self.reshard(Below())
