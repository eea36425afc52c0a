"""Which optimizer it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import Drawing, Tape
from fuzzshard.parts.options.optimizer import Optimizer, OptimizerOption

_CLASSES = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adadelta": "Adadelta",
    "adamax": "Adamax",
    "nadam": "NAdam",
    "radam": "RAdam",
    "asgd": "ASGD",
    "adagrad": "Adagrad",
    "adafactor": "Adafactor",
    "muon": "Muon",
    "muon_unrounded": "Muon",
}
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_STATES = {
    "sgd": ("momentum_buffer",),
    "adam": _MOMENTS,
    "adamw": _MOMENTS,
    "rmsprop": ("square_avg", "step"),
    "adadelta": ("square_avg", "acc_delta", "step"),
    "adamax": ("exp_avg", "exp_inf", "step"),
    "nadam": (*_MOMENTS, "mu_product"),
    "radam": _MOMENTS,
    "asgd": ("ax", "eta", "mu", "step"),
    "adagrad": ("sum", "step"),
    "adafactor": ("row_var", "col_var", "variance", "step"),
    "muon": ("momentum_buffer",),
    "muon_unrounded": ("momentum_buffer",),
}
_ELEMENTWISE = ("adam", "rmsprop", "adadelta", "adamax", "nadam", "radam", "asgd", "adagrad")
"""They update each element by itself."""
_INTERPOLATING = ("adam", "adamax", "nadam", "radam")
"""As AdamW, Adafactor and Muon, they interpolate between a state and the gradient: ``lerp_`` takes
one dtype. States that are loaded have that of the parameter.
"""
_RARER = (*_ELEMENTWISE[1:], "adafactor")
_MUON = ("muon", "muon_unrounded")
_KEEPING_DTYPES = """
class KeepingDtypes(torch.overrides.TorchFunctionMode):  # Muon computes in bfloat16 otherwise
    def __torch_function__(self, function, types, args=(), kwargs=None):
        is_cast = function is torch.Tensor.to and (kwargs or {}).get("dtype") is torch.bfloat16
        if is_cast or function is torch.Tensor.bfloat16:
            return args[0].clone()
        return function(*args, **(kwargs or {}))
"""


class Kind(OptimizerOption):
    """A class of ``torch.optim``.

    Muon "is an optimizer for 2D parameters" (torch/optim/_muon.py), so it gets the matrices of a
    model and no other parameter. It orthogonalizes them in bfloat16, whose rounding would hide
    what is wrong: as ``muon_unrounded`` it does so in the dtype of the gradients. Adafactor keeps
    means of rows and columns. Sharded parameters are DTensors, which provide a "single-device like
    abstraction" (torch/distributed/tensor/_api.py): both see the matrix, and not its shards.
    """

    name, place, choices = "kind", 2, ("adam",)
    extension = Choice("muon", 7, 103, excluded_by=("offload",))
    sources = {"KeepingDtypes": _KEEPING_DTYPES}
    traits = {
        **dict.fromkeys(_ELEMENTWISE, ("moves_without_gradient", "has_state")),
        **dict.fromkeys(
            _INTERPOLATING, ("moves_without_gradient", "has_state", "wants_own_dtype")
        ),
        "sgd": ("takes_momentum",),
        "adamw": (
            *("moves_without_gradient", "has_state", "wants_own_dtype", "decays_by_default"),
        ),
        **dict.fromkeys(
            _MUON,
            (
                *("moves_without_gradient", "has_state", "decays_by_default"),
                *("takes_momentum", "combines_elements", "steps_matrices", "wants_own_dtype"),
            ),
        ),
        "adafactor": (
            *("moves_without_gradient", "has_state", "decays_by_default", "combines_elements"),
            "wants_own_dtype",
        ),
    }
    meanings = {
        **{f"optimizer:{kind}": name for kind, name in _CLASSES.items() if kind not in _MUON},
        "optimizer:muon": "Muon, which gets the matrices alone",
    }

    @override
    def constructor(self, value: str) -> str:
        return _CLASSES[value]

    @override
    def states(self, value: str) -> tuple[str, ...]:
        return _STATES[value]

    @override
    def around(self, value: str) -> str:
        return "KeepingDtypes()" if value == "muon_unrounded" else ""

    @override
    def unrounded(self, value: str) -> str:
        return "muon_unrounded" if value in _MUON else value

    @override
    def without_extension(self, value: str) -> str:
        return str(self.default) if value in _MUON else value

    @override
    def features(self, value: str) -> Iterator[str]:
        yield "optimizer:muon" if value in _MUON else f"optimizer:{value}"

    @override
    def value(self, drawing: Drawing) -> str:
        shapes = drawing.found.parameters.values()
        is_drawn = "muon" in drawing.swarm and any(len(shape) == 2 for shape in shapes)
        exact = drawing.case.values == "dyadic"
        return "muon" if is_drawn and not exact else drawing.case.optimizer.kind

    @override
    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        if exact or not ("adam" in swarm and tape.chance(75)):
            return spec
        if tape.chance(50):
            return replace(spec, kind=tape.pick(_RARER))
        return replace(spec, kind="adamw" if tape.chance(50) else "adam")
