"""The ops that save, corrupt and load state, as statements; :mod:`fuzzshard.training.states` runs
them.
"""

from __future__ import annotations

from fuzzshard.model.statements import indented
from fuzzshard.parts.op import Via
from fuzzshard.reproducer.scope import Scope

_STATES = """
def states(model, optimizer):  # that of the model first: it reshards
    model_state = get_model_state_dict(model)
    return {"model": model_state, "optimizer": get_optimizer_state_dict(model, optimizer)}
"""

_COPIED = """
def copied(state):
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone(), state)
"""

_NEW_FOLDER = """
def new_folder():  # one that all ranks share
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    return folder[0]
"""

_ZERO = """
def zero(model, optimizer):
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
"""

SOURCES = {"states": _STATES, "copied": _COPIED, "new_folder": _NEW_FOLDER, "zero": _ZERO}
"""Helper functions by name."""


class States:
    """Knows how the state was saved last."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.saved: Via = "dcp"

    def save(self, via: Via) -> list[str]:
        """Saves model and optimizer; the reference needs no file to remember."""
        self.saved, called = via, self.scope.called
        copies = [f"saved = copied([{called}.state_dict(), optimizer.state_dict()])"]
        if via == "state_dict":
            self.scope.uses.add("copied")
            return copies
        self.scope.uses |= {"states", "new_folder"}
        files = ["folder = new_folder()", f"dcp.save(states({called}, optimizer), {self._where})"]
        return self._unless_reference(copies, files)

    def _unless_reference(self, reference: list[str], engine: list[str]) -> list[str]:
        if self.scope.aim.kind != "compare":
            return engine
        self.scope.uses.add("copied")
        condition = f"if {self.scope.called} is reference:"
        return [condition, *indented(reference), "else:", *indented(engine)]

    @property
    def _where(self) -> str:
        """Slices along the pipeline each save for themselves, unless tensor parallelism needs all
        ranks.
        """
        mesh = self.scope.case.mesh
        if mesh.pipeline is None or mesh.tensor is not None:
            return "checkpoint_id=folder"
        return "checkpoint_id=f\"{folder}/{world_mesh.get_local_rank('pp')}\", process_group=group"

    def load(self, renewed: list[str], *, assign: bool) -> list[str]:
        """Loads both; ``renewed`` are the statements for parameters that were replaced."""
        if self.saved == "state_dict":
            self.scope.uses.add("copied")
            return self._copies(renewed, assign=assign)
        self.scope.uses |= {"states", "copied"} if assign else {"states"}
        return self._unless_reference(self._copies([], assign=False), self._files(assign=assign))

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

    def zero(self) -> list[str]:
        """Zeroes parameters and the state of the optimizer in place."""
        self.scope.uses.add("zero")
        return [f"zero({self.scope.called}, optimizer)"]
