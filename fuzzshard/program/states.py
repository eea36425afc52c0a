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

    def save(self, via: Via) -> list[str]:
        """Save model and optimizer."""
        called = self.scope.called
        copies = [f"saved = copied([{called}.state_dict(), optimizer.state_dict()])"]
        if via == "state_dict":
            return copies
        files = ["folder = new_folder()", f"dcp.save(states({called}, optimizer), {self._where})"]
        return self.scope.either(copies, files)

    @property
    def _where(self) -> str:
        """Say where: slices along the pipeline each save for themselves, unless tensor
        parallelism needs all ranks.
        """
        mesh = self.scope.case.mesh
        if self.scope.names.within:
            group = "group" if mesh.tensor is None else "everyone"
            return f"checkpoint_id=folder, process_group={group}"
        if mesh.pipeline is None or mesh.tensor is not None:
            return "checkpoint_id=folder"
        return "checkpoint_id=f\"{folder}/{world_mesh.get_local_rank('pp')}\", process_group=group"

    def load(self, saved: Via | None, renewed: list[str], *, assign: bool) -> list[str]:
        """Load both; ``renewed`` are the statements for parameters that were replaced."""
        if saved == "state_dict":
            return self._copies(renewed, assign=assign)
        return self.scope.either(self._copies([], assign=False), self._files(assign=assign))

    def _copies(self, renewed: list[str], *, assign: bool) -> list[str]:
        return [
            "model_state, optimizer_state = copied(saved)",
            f"{self.scope.called}.load_state_dict(model_state{', assign=True' if assign else ''})",
            *(renewed if assign else []),
            "optimizer.load_state_dict(optimizer_state)",
        ]

    def _files(self, *, assign: bool) -> list[str]:
        called, load = self.scope.called, f"dcp.load(state, {self._where})"
        if not assign:
            return [f"state = states({called}, optimizer)", load]
        return [
            f"state = copied(states({called}, optimizer))",
            load,
            f'set_model_state_dict({called}, state["model"])',
            f'set_optimizer_state_dict({called}, optimizer, state["optimizer"])',
        ]

    def take(self) -> list[str]:
        """Keep the state dict."""
        return [f"taken = {self.scope.called}.state_dict()"]

    def zero(self) -> list[str]:
        """Zero parameters and the state of the optimizer in place."""
        return [f"zero({self.scope.called}, optimizer)"]
