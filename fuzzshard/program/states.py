"""Saving, losing and loading what a training run has, as statements."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fuzzshard.analysis.dtypes import grad_dtypes_set
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.model.statements import call_lines, indented
from fuzzshard.parts.op import Via

if TYPE_CHECKING:
    from fuzzshard.program.scope import Scope


@dataclasses.dataclass(frozen=True)
class States:
    """Parameters, buffers and the state of the optimizer; those of the plain model need no file to
    be remembered.
    """

    scope: Scope

    def save(self, via: Via, *, asynchronous: bool) -> list[str]:
        """Save model and optimizer; to a file perhaps while what follows runs."""
        called = self.scope.called
        saved = (called, *self._optimizers, *(["scheduler"] if self._is_scheduled else []))
        listed = ", ".join(f"{each}.state_dict()" for each in saved)
        copies = call_lines("saved = copied", [f"[{listed}]"])
        if via == "state_dict":
            return copies
        states = self._with_scheduler(self._all_states)
        saves = f"dcp.save({states}, {self._where})"
        if asynchronous:
            where = "checkpoint_id=folder, process_group=saving_group()"
            saves = f"saving = dcp.async_save({states}, {where})"
        files = ["folder = new_folder()", saves]
        return self.scope.either(copies, files)

    @property
    def _optimizers(self) -> tuple[str, ...]:
        """Return their variables."""
        return tuple(self.scope.case.optimizer.each)

    @property
    def _all_states(self) -> str:
        """Write the states as ``torch.distributed.checkpoint`` takes them: those of optimizers by
        name where ranks have stages.
        """
        states = "states_of_stages" if self.scope.engine.in_stages else "states"
        return f"{states}({self.scope.called}, {self._given})"

    @property
    def _given(self) -> str:
        """Write the optimizers as it takes them."""
        names = ", ".join(self._optimizers)
        return names if len(self._optimizers) == 1 else f"[{names}]"

    @property
    def _where(self) -> str:
        """Say where: slices along the pipeline each save for themselves, unless they are stages of
        one model, or tensor parallelism needs all ranks.
        """
        mesh, in_stages = self.scope.case.mesh, self.scope.engine.in_stages
        if self.scope.names.within:
            group = "everyone" if in_stages or mesh.tensor else "group"
            return f"checkpoint_id=folder, process_group={group}"
        if in_stages or not mesh.saves_in_slices:
            return "checkpoint_id=folder"
        return "checkpoint_id=f\"{folder}/{world_mesh.get_local_rank('pp')}\", process_group=group"

    def load(self, *, assign: bool) -> list[str]:
        """Load both, as they were saved."""
        events = self.scope.event_lines
        if self.scope.now.saved == "state_dict":
            return [*self._copies(assign=assign), *events]
        sets = assign or self._is_scheduled
        plain = self._copies(assign=False, fills=not sets)
        return [*self.scope.either(plain, self._files(assign=assign, sets=sets)), *events]

    def _copies(self, *, assign: bool, fills: bool = False) -> list[str]:
        """Load copies, or fill the tensors that there are, as ``dcp.load`` does."""
        scheduler = ["scheduler_state"] if self._is_scheduled else []
        states = {name: f"{name}_state" for name in self._optimizers}
        into = ", ".join(["model_state", *states.values(), *scheduler])
        load = "fill_state({0}, {1})" if fills else "{0}.load_state_dict({1})"
        return [
            f"{into} = copied(saved)",
            f"{self.scope.called}.load_state_dict(model_state{', assign=True' if assign else ''})",
            *(self._retyped if assign else []),
            *(self.scope.renewed if assign else []),
            *(load.format(name, state) for name, state in states.items()),
            *(["scheduler.load_state_dict(scheduler_state)"] if scheduler else []),
        ]

    def _files(self, *, assign: bool, sets: bool) -> list[str]:
        """Load into the tensors of the states, or into copies that are set then.

        The learning rate is no tensor: "Users must call `load_state_dict` on the root module to
        ensure load post-processing and non-tensor data properly propagates" (``dcp.load``).
        """
        called, states = self.scope.called, self._all_states
        state = self._with_scheduler(f"copied({states})" if assign else states)
        set_model = f'set_model_state_dict({called}, state["model"])'
        options, given = [], ""
        if self.scope.engine.in_stages:
            options = ["options = StateDictOptions(flatten_optimizer_state_dict=True)"]
            given = ", options=options"
        set_optimizer = (
            f'set_optimizer_state_dict({called}, {self._given}, state["optimizer"]{given})'
        )
        return [
            f"state = {state}",
            f"dcp.load(state, {self._where})",
            *([set_model] if assign else []),
            *([*options, set_optimizer] if sets else []),
        ]

    @property
    def _retyped(self) -> list[str]:
        """Set ``grad_dtype`` again of parameters that are other tensors now; those of groups
        inherit it ("An explicit grad_dtype [...] is inherited by a parameter that
        load_state_dict(assign=True) registers without one", ``fully_shard``).
        """
        scope = self.scope
        case, owners = scope.case, inferred(scope.case).owners
        lines = [line for op in case.schedule if op.retypes for line in op.settings(scope)]
        if not scope.shards or not lines:
            return lines
        only = f"if {scope.called} is reference:"
        return [
            *([only, *indented(lines)] if scope.shared else []),
            *(
                line
                for fqn, dtype in grad_dtypes_set(case).items()
                if owners[fqn] is UNMANAGED
                for line in scope.attribute_lines(
                    fqn, f"grad_dtype = {dtype and f'torch.{dtype}'}"
                )
            ),
        ]

    @property
    def _is_scheduled(self) -> bool:
        return bool(self.scope.case.optimizer.scheduler)

    def _with_scheduler(self, states: str) -> str:
        """Add the scheduler, which ``dcp`` asks for its state and gives it back."""
        return f'{states} | {{"scheduler": scheduler}}' if self._is_scheduled else states

    def take(self, *, inference: bool) -> list[str]:
        """Keep the state dict."""
        line = f"taken = {self.scope.called}.state_dict()"
        return ["with torch.inference_mode():", f"    {line}"] if inference else [line]

    def zero(self) -> list[str]:
        """Zero parameters and the state of the optimizer in place."""
        names = ", ".join([self.scope.called, *self._optimizers])
        return [f"zero({names})", *self.scope.event_lines]
