"""The values of registered parameters after a forward.

The reference registers parameters in the dtype they are trained in. An engine may register them in
the dtype that a forward computes in: which one it is, another oracle judges.
"""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class RegisteredParameter(oracle.TensorOracle):
    """The value of every registered parameter between a forward and its backward.

    This is what ``model.parameters()`` gives a user at that moment, gathered with
    ``full_tensor()`` where it is a DTensor. Any dtype may be registered; ``registration`` judges
    which one it is.

    It cannot see parameters of FSDP1, which registers views of flat parameters.
    """

    name = "registered_parameter"
    place = 130
    looks = ("parameters",)
    dtype = "observed"
    gathered = False
    handle = "expression"
    what = "parameter after forward"
    value = "{registered}"
    over = "n in names"
    single = "{one}"
    thing = "{name} after the forward"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        for fqn in seen.engine.facts.parameters if seen.engine.registers else ():
            seen.keep_once(self, index, fqn, seen.engine.parameter(fqn))
