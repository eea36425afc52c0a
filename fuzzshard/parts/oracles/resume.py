"""What a checkpoint brings back: the states of the optimizer, and parameters that were corrupted.

The negative control is :mod:`fuzzshard.oracles.resume`: what a load restores must have been lost
before.
"""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Resume(oracle.TensorOracle):
    """States after saving and loading, parameters after they were corrupted."""

    name = "resume"
    place = 100
    looks = ("optimizer", "corrupted")
    is_state = True
    gathered = False
    in_flat = True
    what = "saved and loaded state"
    value = "p"
    thing = "{name} after saving, corrupting or loading"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.engine.observed().items()

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        if look == "corrupted":
            super().record(seen, index, look)
            return
        for name, state in seen.optimizer_states():
            seen.keep(self, index, name, state)

    @override
    def one(self, watch: oracle.Watch, index: int) -> str:
        state, _, fqn = watch.aim.name.partition(" of ")
        return f'optimizer.state.get({watch.scope.at(fqn)}, {{}}).get("{state}")'

    @override
    def entries(self, watch: oracle.Watch, index: int) -> str:
        if watch.ops[index].corrupts:
            return super().entries(watch, index)
        names = watch.case.optimizer.states
        value, over = "optimizer.state.get(p, {}).get(k)", f"{self.over} for k in {names}"
        return watch.entries(index, value, over, name="{k} of {n}", oracle=self.name)

    @override
    def gathered_by(self, watch: oracle.Watch, index: int) -> str:
        return "" if watch.ops[index].corrupts else super().gathered_by(watch, index)
