"""Saving, losing and loading what a training run has, as statements."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

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
        scheduler = ", scheduler.state_dict()" if self._is_scheduled else ""
        copies = [f"saved = copied([{called}.state_dict(), optimizer.state_dict(){scheduler}])"]
        if via == "state_dict":
            return copies
        states = self._with_scheduler(self._states)
        saves = f"dcp.save({states}, {self._where})"
        if asynchronous:
            where = "checkpoint_id=folder, process_group=saving_group()"
            saves = f"saving = dcp.async_save({states}, {where})"
        files = ["folder = new_folder()", saves]
        return self.scope.either(copies, files)

    @property
    def _states(self) -> str:
        """Write what is saved; states of an optimizer by name where ranks have stages."""
        states = "states_of_stages" if self.scope.engine.in_stages else "states"
        return f"{states}({self.scope.called}, optimizer)"

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

    def load(self, saved: Via | None, renewed: list[str], *, assign: bool) -> list[str]:
        """Load both; ``renewed`` are the statements for parameters that were replaced."""
        events = self.scope.event_lines
        if saved == "state_dict":
            return [*self._copies(renewed, assign=assign), *events]
        sets = assign or self._is_scheduled
        plain = self._copies([], assign=False, fills=not sets)
        return [*self.scope.either(plain, self._files(assign=assign, sets=sets)), *events]

    def _copies(self, renewed: list[str], *, assign: bool, fills: bool = False) -> list[str]:
        """Load copies, or fill the tensors that there are, as ``dcp.load`` does."""
        scheduler = ", scheduler_state" if self._is_scheduled else ""
        return [
            f"model_state, optimizer_state{scheduler} = copied(saved)",
            f"{self.scope.called}.load_state_dict(model_state{', assign=True' if assign else ''})",
            *(renewed if assign else []),
            "fill_state(optimizer, optimizer_state)"
            if fills
            else "optimizer.load_state_dict(optimizer_state)",
            *(["scheduler.load_state_dict(scheduler_state)"] if scheduler else []),
        ]

    def _files(self, *, assign: bool, sets: bool) -> list[str]:
        """Load into the tensors of the states, or into copies that are set then.

        The learning rate is no tensor: "Users must call `load_state_dict` on the root module to
        ensure load post-processing and non-tensor data properly propagates" (``dcp.load``).
        """
        called, states = self.scope.called, self._states
        state = self._with_scheduler(f"copied({states})" if assign else states)
        set_model = f'set_model_state_dict({called}, state["model"])'
        options, given = [], ""
        if self.scope.engine.in_stages:
            options = ["options = StateDictOptions(flatten_optimizer_state_dict=True)"]
            given = ", options=options"
        set_optimizer = f'set_optimizer_state_dict({called}, optimizer, state["optimizer"]{given})'
        return [
            f"state = {state}",
            f"dcp.load(state, {self._where})",
            *([set_model] if assign else []),
            *([*options, set_optimizer] if sets else []),
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
        return [f"zero({self.scope.called}, optimizer)", *self.scope.event_lines]
