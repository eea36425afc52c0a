"""State dicts that are taken, and what one that was taken earlier holds now."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class StateDict(oracle.TensorOracle):
    """Every tensor of a state dict, where it is taken.

    One that was taken earlier is compared again where its tensors are the model's own.

    It cannot see entries that are not tensors.
    """

    name = "state_dict"
    place = 120
    looks = ("dict", "taken")
    what = "state dict"
    value = "t"
    over = "n, t in taken.items()"
    thing = "{name} in the state dict"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        if look == "taken" and not seen.engine.state_dict_aliases:
            return
        for fqn, tensor in seen.trainer.states.taken.items():
            seen.keep(self, index, fqn, tensor)
