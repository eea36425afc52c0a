"""Leaf modules: which kinds a case may use and what each looks like at a given width."""

from __future__ import annotations

from fuzzshard.case.graph import (
    MLP,
    Activation,
    Attention,
    BatchNorm,
    Conv1d,
    Dropout,
    LayerNorm,
    Leaf,
    Linear,
    RawParameter,
    RMSNorm,
)
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_EXACT = frozenset(("linear", "linear_no_bias", "conv1d", "raw_parameter", "raw_matrix", "mlp", "activation"))
_KEEPS_WIDTH = (
    "linear",
    "linear_no_bias",
    "layer_norm",
    "rms_norm",
    "batch_norm",
    "raw_parameter",
    "raw_matrix",
    "mlp",
    "conv1d",
    "attention",
    "dropout",
    "activation",
)
_CHANGES_WIDTH = ("linear", "linear_no_bias", "conv1d")
_WITHOUT_PARAMETERS = frozenset(("dropout", "activation"))
_NORMS = ("layer_norm", "rms_norm")


class Leaves:
    """Draws leaves of the kinds that a case may use."""

    def __init__(
        self, tape: Tape, swarm: Swarm, pool: tuple[int, ...], *, sequence: bool, exact: bool
    ) -> None:
        self.tape, self.swarm, self.pool, self.exact = tape, swarm, pool, exact
        allowed = swarm if sequence else swarm - {"conv1d", "attention"}
        if exact:
            allowed &= _EXACT
        self.keeping = [kind for kind in _KEEPS_WIDTH if kind in allowed]
        self.changing = [kind for kind in _CHANGES_WIDTH if kind in allowed] or ["linear"]
        if not set(self.keeping) - _WITHOUT_PARAMETERS:
            self.keeping = ["linear", *self.keeping]

    def any(self, width: int) -> Leaf:
        """A leaf for a value of ``width``; where its kind may change the width, it may."""
        kind = self.tape.pick(self.keeping)
        return self._make(kind, width, self.tape.pick(self.pool) if kind in _CHANGES_WIDTH else width)

    def with_parameters(self, width: int) -> Leaf:
        """A leaf that has parameters; no backward of such a leaf needs its result."""
        kind = self.tape.pick([kind for kind in self.keeping if kind not in _WITHOUT_PARAMETERS])
        return self._make(kind, width, self.tape.pick(self.pool) if kind in _CHANGES_WIDTH else width)

    def norm(self) -> Leaf:
        """A norm over the features."""
        return self._make(self.tape.pick([kind for kind in _NORMS if kind in self.swarm] or _NORMS), 0, 0)

    def to_width_with_parameters(self, width: int, out: int) -> Leaf:
        """As :meth:`to_width`, and it has parameters."""
        keeping = [kind for kind in self.keeping if kind not in _WITHOUT_PARAMETERS]
        return self._make(self.tape.pick(keeping if width == out else self.changing), width, out)

    def to_width(self, width: int, out: int) -> Leaf:
        """A leaf that takes a value of ``width`` to one of ``out`` features."""
        return self._make(self.tape.pick(self.keeping if width == out else self.changing), width, out)

    def _make(self, kind: str, width: int, out: int) -> Leaf:
        tape = self.tape
        match kind:
            case "layer_norm":
                return LayerNorm(bias=not tape.chance(25))
            case "rms_norm":
                return RMSNorm()
            case "batch_norm":
                return BatchNorm()
            case "raw_parameter":
                return RawParameter()
            case "raw_matrix":
                return RawParameter(matrix=True)
            case "mlp":
                return MLP(hidden=tape.pick(self.pool), bias=not tape.chance(25))
            case "conv1d":
                return Conv1d(out=out, bias=not tape.chance(25))
            case "attention":
                return Attention(heads=2 if width % 2 == 0 and tape.chance(50) else 1)
            case "dropout":
                return Dropout(p=0.5)
            case "activation":
                return Activation() if self.exact else tape.pick(_ACTIVATIONS)
            case _:
                return Linear(out=out, bias=kind == "linear")


_ACTIVATIONS = (Activation(), Activation(fn="gelu"), Activation(fn="tanh"))
