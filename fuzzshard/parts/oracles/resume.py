"""What a checkpoint brings back: the states of the optimizer, and parameters that were corrupted.

The negative control is :mod:`fuzzshard.oracles.resume`: what a load restores must have been lost
before.
"""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle

_STATES = {"sgd": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq", "step")}


class Resume(oracle.TensorOracle):
    """States after saving and loading, parameters after they were corrupted."""

    name = "resume"
    place = 100
    looks = ("optimizer", "corrupted")
    is_state = True
    gathered = False
    in_flat = True
    noun = "state"
    what = "saved and loaded state"
    thing = "{name} after saving, corrupting or loading"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        if look == "corrupted":
            seen.keep_trained(self, index)
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
            return watch.entries(index, "p", oracle=self.name)
        names = _STATES[watch.case.optimizer.kind.removesuffix("w")]
        return watch.entries(
            index,
            "optimizer.state.get(p, {}).get(k)",
            f"{oracle.PARAMETERS} for k in {names}",
            name="{k} of {n}",
            oracle=self.name,
        )

    @override
    def whole(self, watch: oracle.Watch, index: int) -> str:
        return "" if watch.ops[index].corrupts else super().whole(watch, index)
