"""The optimizer and its options. To add one: its class, and its field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import (
    DrawingOptimizer,
    Mapping,
    Option,
    Reasons,
    Tape,
    WithOptions,
    options_of,
)
from fuzzshard.parts.part import off_default


class Optimizer(WithOptions["OptimizerOption"], frozen=True, kw_only=True):
    """The optimizer and its hyperparameters."""

    kind: Kinds = "sgd"
    lr: float = 0.125
    momentum: float = 0.0
    weight_decay: float = 0.0
    foreach: bool | None = None
    exclude: tuple[str, ...] = ()
    post_optim_event: bool = False
    maximize: bool = False
    lr_scheduler: Literal["step_lr", "cosine_annealing_lr", "one_cycle_lr"] | None = None
    grad_scaler: Literal["finite", "infinite", "default"] | None = None
    beside: Literal["sgd", "adamw"] | None = None
    flags: tuple[Flag, ...] = ()

    @property
    def second(self) -> Optimizer | None:
        """The one beside it, if there is one."""
        if self.beside is None:
            return None
        return Optimizer(kind=self.beside, lr=self.lr, weight_decay=self.weight_decay)

    @property
    def each(self) -> dict[str, Optimizer]:
        """By the variables of a script, it alone and the second one."""
        alone = {"optimizer": replace(self, beside=None)}
        return alone if self.second is None else alone | {"second": self.second}

    @property
    def has_state(self) -> bool:
        """Whether its steps leave a state; SGD has its momentum alone."""
        return self.kind != "sgd" or self.momentum != 0

    @property
    def decays(self) -> bool:
        """Whether it takes a weight decay."""
        return self.kind != "rprop"

    @property
    def steps_matrices(self) -> bool:
        """Whether it takes parameters of two dimensions alone, as Muon does."""
        return self.kind in _MUON

    @property
    def combines_elements(self) -> bool:
        """Whether a step combines the elements of a parameter, so that shards communicate."""
        return self.steps_matrices or self.kind == "adafactor"

    @property
    def wants_own_dtype(self) -> bool:
        """Whether a gradient is of the dtype of its parameter."""
        takes_one = bool(self.foreach) or not {"fused", "centered"}.isdisjoint(self.flags)
        return takes_one or any(o.kind in _INTERPOLATING for o in self.each.values())

    @property
    def steps_lists_on_cuda(self) -> bool:
        """Whether it steps lists there, as all do by default but those of matrices."""
        return any(
            "fused" in o.flags or (o.foreach is not False and not o.steps_matrices)
            for o in self.each.values()
        )

    @property
    def states(self) -> tuple[str, ...]:
        """The names of what is kept for a parameter."""
        kinds = (each.kind for each in self.each.values())
        return tuple(dict.fromkeys(name for kind in kinds for name in _STATES[kind]))

    @property
    def scheduler(self) -> str:
        """The expression of what changes the learning rate of ``optimizer``, or nothing."""
        called = self.lr_scheduler and _SCHEDULERS[self.lr_scheduler]
        return f"torch.optim.lr_scheduler.{called}" if called else ""

    @property
    def scaler(self) -> list[str]:
        """The arguments of what scales losses, or none."""
        return ["device", f"init_scale={_SCALES[self.grad_scaler]}"] if self.grad_scaler else []

    @property
    def beside_states(self) -> tuple[str, ...]:
        """The variables of what has a state to save beside the optimizers."""
        return ("scheduler",) * bool(self.lr_scheduler) + ("scaler",) * bool(self.grad_scaler)

    def step_lines(self) -> list[str]:
        """Return the statements of a step."""
        steps = [f"{name}.step()" for name in self.each]
        if self.grad_scaler:
            scale = "1024.0" if self.grad_scaler == "infinite" else ""
            steps = [*(f"scaler.step({name})" for name in self.each), f"scaler.update({scale})"]
        if self.kind == "muon_unrounded":
            steps = ["with KeepingDtypes():", *(f"    {line}" for line in steps)]
        return [*steps, *(["scheduler.step()"] if self.lr_scheduler else [])]

    def initially(self, state: str) -> float | None:
        """Return what each element of a state is before the first step; None where that depends
        on the learning rate by then, or of its group.
        """
        rate = None if self.lr_scheduler or "vectors_apart" in self.flags else self.lr
        held = {"eta": rate, "step_size": rate, "mu": 1.0, "mu_product": 1.0}
        if "other_numbers" in self.flags:
            held["sum"] = _ACCUMULATED
        return held.get(state, 0.0)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The modules or parameters that no optimizer gets."""
        return () if self.beside else self.exclude

    def leaving_out(self, paths: Iterable[str]) -> Optimizer:
        """Return the optimizer for all but ``paths``; without any, there is no second one."""
        paths = tuple(paths)
        return replace(self, exclude=paths, beside=self.beside if paths else None)

    def for_matrices(self, shapes: Mapping[str, Sequence[int]]) -> Optimizer:
        """Return the optimizer without parameters that are no matrices, and without options that
        optimizers of matrices do not take.
        """
        lacking = (option for option in OPTIMIZER_OPTIONS if not option.for_matrices)
        spec = replace(self, **{option.name: option.default for option in lacking}).fitting()
        return spec.leaving_out(fqn for fqn, shape in shapes.items() if not self.takes(shape))

    def fitting(self) -> Optimizer:
        """Return the optimizer without the flags that exclude its other options."""
        spec = replace(self, flags=())
        for flag in self.flags:
            more = replace(spec, flags=(*spec.flags, flag))
            spec = spec if any(flag_misfits(more)) else more
        return spec

    def takes(self, shape: Sequence[int]) -> bool:
        """Return whether it steps parameters of such a shape."""
        return len(shape) == 2 or not self.steps_matrices

    def unrounded(self) -> Optimizer:
        """Return the optimizer with steps that round to no coarser dtype than the parameters'."""
        return replace(self, kind="muon_unrounded") if self.steps_matrices else self

    def in_turn(self) -> Optimizer:
        """Return the optimizer with ``foreach=False``, which updates parameters one by one."""
        return self.without_flags("fused", foreach=False)

    @property
    def fused_flags(self) -> tuple[str, ...]:
        """The flags that the reference has not: it steps by operators that others have, too.

        What is capturable counts steps in float32 then, from which fused kernels compute in
        float64.
        """
        return ("fused", "capturable") if "fused" in self.flags else ()

    def without_flags(self, *names: str, foreach: bool | None = None) -> Optimizer:
        """Return the optimizer without these flags, and with ``foreach`` if that is given."""
        flags = tuple(flag for flag in self.flags if flag not in names)
        return replace(self, flags=flags, foreach=self.foreach if foreach is None else foreach)

    def unscaled(self) -> Optimizer:
        """Return the optimizer without a ``GradScaler``."""
        return replace(self, grad_scaler=None)

    def call(self) -> tuple[str, list[str]]:
        """Return its class, and the arguments that are not torch's defaults."""
        given = [text for option, value in self.told() for text in option.given(value, self)]
        return f"torch.optim.{_CLASSES[self.kind]}", given

    def features(self) -> Iterator[str]:
        """Yield the features of its options."""
        off = {*off_default(self)}
        for option, value in self.told():
            if option.name in off or option.name == "kind":
                yield from option.features(value)

    def text(self) -> str:
        """Return what drawings say of it."""
        off = {*off_default(self)}
        given = ", ".join(
            f"{option.name}={value}"
            for option, value in self.told()
            if option.always_told or (option.name in off and option.name != "kind")
        )
        return f"{self.kind}({given})"


class OptimizerOption(Option):
    """An argument of an optimizer's class, or a statement that goes with it."""

    for_matrices: ClassVar[bool] = True
    """Whether optimizers of matrices take it."""

    def given(self, value: Any, optimizer: Optimizer) -> tuple[str, ...]:
        """Return the arguments of the class that stand for it."""
        return self.arguments(value)

    def features(self, value: Any) -> Iterator[str]:
        """Yield the features of a value off its default."""
        yield from self.meanings

    def value(self, drawing: DrawingOptimizer) -> Any:
        """Return a value for a case that has its model and its plan, if that is drawn then."""
        return self.name in drawing.swarm

    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        """Return ``spec`` with a value; with ``exact`` one that rounds nothing."""
        return spec

    def settle(self, tape: Tape, spec: Optimizer, *, exact: bool) -> Optimizer:
        """Return ``spec`` with the value that goes with those of the others."""
        return spec


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
    "rprop": "Rprop",
    "muon": "Muon",
    "muon_unrounded": "Muon",
}
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_OF_ADAM = (*_MOMENTS, "max_exp_avg_sq")
_STATES = {
    "sgd": ("momentum_buffer",),
    "adam": _OF_ADAM,
    "adamw": _OF_ADAM,
    "rmsprop": ("square_avg", "momentum_buffer", "grad_avg", "step"),
    "adadelta": ("square_avg", "acc_delta", "step"),
    "adamax": ("exp_avg", "exp_inf", "step"),
    "nadam": (*_MOMENTS, "mu_product"),
    "radam": _MOMENTS,
    "asgd": ("ax", "eta", "mu", "step"),
    "adagrad": ("sum", "step"),
    "adafactor": ("row_var", "col_var", "variance", "step"),
    "rprop": ("prev", "step_size", "step"),
    "muon": ("momentum_buffer",),
    "muon_unrounded": ("momentum_buffer",),
}
_RARER = (
    *("rmsprop", "adadelta", "adamax", "nadam", "radam", "asgd", "adagrad", "adafactor"),
    "rprop",
)
_MUON = ("muon", "muon_unrounded")
_WITH_MOMENTUM = ("sgd", "rmsprop", *_MUON)
_DECAYING = ("adamw", "adafactor", *_MUON)
"""By default."""
_INTERPOLATING = ("adam", "adamax", "nadam", "radam", *_DECAYING)
"""They interpolate between a state and the gradient, as RMSprop does that is centered: ``lerp_``
takes one dtype. States that are loaded have that of the parameter.
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
    sources = """
class KeepingDtypes(torch.overrides.TorchFunctionMode):  # Muon computes in bfloat16 otherwise
    def __torch_function__(self, function, types, args=(), kwargs=None):
        is_cast = function is torch.Tensor.to and (kwargs or {}).get("dtype") is torch.bfloat16
        if is_cast or function is torch.Tensor.bfloat16:
            return args[0].clone()
        return function(*args, **(kwargs or {}))
"""
    extension = Choice("muon", 7, 103, excluded_by=("offload",))
    meanings = {
        **{f"optimizer:{kind}": name for kind, name in _CLASSES.items() if kind not in _MUON},
        "optimizer:muon": "Muon, which gets the matrices alone",
    }

    @override
    def features(self, value: str) -> Iterator[str]:
        yield "optimizer:muon" if value in _MUON else f"optimizer:{value}"

    @override
    def value(self, drawing: DrawingOptimizer) -> str:
        shapes = drawing.found.parameters.values()
        is_drawn = "muon" in drawing.swarm and any(len(shape) == 2 for shape in shapes)
        exact = drawing.case.values == "dyadic"
        return "muon" if is_drawn and not exact else drawing.case.optimizer.kind

    @override
    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        if exact or not ("adam" in swarm and tape.chance(75)):
            return spec
        if tape.chance(30):
            return replace(spec, kind=tape.pick(_RARER))
        return replace(spec, kind="adamw" if tape.chance(50) else "adam")


_POWERS_OF_TWO = (0.0625, 0.03125, 0.125)
_SGD_RATES = (0.03125, 0.01, 0.02, 0.05)
_ADAM_RATES = (0.01, 0.015625, 0.003)


class LearningRate(OptimizerOption):
    """The learning rate."""

    name, place, always_told = "lr", 3, True

    @override
    def given(self, value: float, optimizer: Optimizer) -> tuple[str, ...]:
        if "tensor_lr" in optimizer.flags:  # of the precision of a number
            return (f"lr=torch.tensor({value}, dtype=torch.float64)",)
        return (f"lr={value}",)

    @override
    def settle(self, tape: Tape, spec: Optimizer, *, exact: bool) -> Optimizer:
        rates = _SGD_RATES if spec.kind in ("sgd", *_MUON) else _ADAM_RATES
        return replace(spec, lr=tape.pick(_POWERS_OF_TWO if exact else rates))


class Momentum(OptimizerOption):
    """The momentum of SGD, RMSprop or Muon. With 0.5, products are exact."""

    name, place, choices = "momentum", 0, ("momentum",)
    meanings = {"optimizer:momentum": "SGD or RMSprop with momentum"}

    @override
    def given(self, value: float, optimizer: Optimizer) -> tuple[str, ...]:
        return (f"momentum={value}",) if value and optimizer.kind in _WITH_MOMENTUM else ()

    @override
    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        return replace(spec, momentum=0.5 * ("momentum" in swarm and tape.chance(80)))

    @override
    def settle(self, tape: Tape, spec: Optimizer, *, exact: bool) -> Optimizer:
        if exact:
            return spec
        takes = spec.kind in _WITH_MOMENTUM
        decimals = tape.pick((0.9, 0.5)) if takes else 0.0
        return replace(spec, momentum=decimals if spec.momentum else 0.0)


class WeightDecay(OptimizerOption):
    """The weight decay. AdamW decays by default."""

    name, place, choices = "weight_decay", 1, ("weight_decay",)
    meanings = {"optimizer:weight_decay": "any optimizer with weight decay"}

    @override
    def given(self, value: float, optimizer: Optimizer) -> tuple[str, ...]:
        told = optimizer.decays and (value or optimizer.kind in _DECAYING)
        return (f"weight_decay={value}",) if told else ()

    @override
    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        if exact or not ("weight_decay" in swarm and tape.chance(60)):
            return spec
        return replace(spec, weight_decay=tape.pick((0.125, 0.01)))

    @override
    def settle(self, tape: Tape, spec: Optimizer, *, exact: bool) -> Optimizer:
        return spec if spec.decays else replace(spec, weight_decay=0.0)


class Foreach(OptimizerOption):
    """Whether the optimizer takes tensors in lists."""

    name, extension, for_matrices = "foreach", Choice("foreach", 12, 0), False
    meanings = {"optimizer:foreach": "foreach=True", "optimizer:no_foreach": "foreach=False"}

    @override
    def arguments(self, value: bool | None) -> tuple[str, ...]:
        return () if value is None else (f"foreach={value}",)

    @override
    def features(self, value: bool) -> Iterator[str]:
        yield f"optimizer:{'foreach' if value else 'no_foreach'}"

    @override
    def value(self, drawing: DrawingOptimizer) -> bool | None:
        return drawing.tape.chance(60) if "foreach" in drawing.swarm else None


class Exclude(OptimizerOption):
    """Modules or parameters that the optimizer does not get."""

    name, extension = "exclude", Choice("exclude", 10, 1, needed_by=("second_optimizer",))
    meanings = {"optimizer:exclude": "an optimizer that does not get all parameters"}

    @override
    def value(self, drawing: DrawingOptimizer) -> tuple[str, ...]:
        return drawing.some_parameters() if "exclude" in drawing.swarm else ()


class PostOptimEvent(OptimizerOption):
    """Whether an event is recorded after every step and handed to the FSDP root."""

    name, extension = "post_optim_event", Choice("post_optim_event", 8, 2)
    meanings = {"optimizer:post_optim_event": "an event after every step, handed to the FSDP root"}


class Maximize(OptimizerOption):
    """Whether steps go up the gradient."""

    name, extension, for_matrices = "maximize", Choice("maximize", 6, 100), False
    texts = {True: "maximize=True"}
    meanings = {"optimizer:maximize": "maximize=True"}


_SCHEDULERS = {
    "step_lr": "StepLR(optimizer, step_size=1, gamma=0.5)",
    "cosine_annealing_lr": "CosineAnnealingLR(optimizer, T_max=8)",
    "one_cycle_lr": (
        'OneCycleLR(optimizer, optimizer.defaults["lr"], total_steps=64, cycle_momentum=False)'
    ),
}
"""One cycle has more steps than any schedule: its last one may not be followed by another."""


class LRScheduler(OptimizerOption):
    """Which scheduler changes the learning rate.

    "Learning rate scheduling should be applied after optimizer's update" (docs of torch.optim).
    The learning rate is in the optimizer's ``param_groups``: its state is saved and loaded with
    that of the scheduler (``LambdaLR.load_state_dict``).
    """

    name, extension = "lr_scheduler", Choice("lr_scheduler", 12, 101, needs=("several_steps",))
    meanings = {
        "optimizer:step_lr": "a learning rate that StepLR halves after every step",
        "optimizer:cosine_annealing_lr": "a learning rate of CosineAnnealingLR",
        "optimizer:one_cycle_lr": "a learning rate of OneCycleLR",
    }

    @override
    def features(self, value: str) -> Iterator[str]:
        yield f"optimizer:{value}"

    @override
    def value(self, drawing: DrawingOptimizer) -> str | None:
        if self.name not in drawing.swarm:
            return None
        exact = drawing.case.values == "dyadic"
        return "step_lr" if exact else drawing.tape.pick((*_SCHEDULERS,))


_SCALES = {
    "finite": "1024.0, growth_interval=1",
    "infinite": 'float("inf")',
    "default": "65536.0",
}


class GradScaler(OptimizerOption):
    """Whether losses are scaled for their backward, and steps unscale gradients.

    A scale that is ``infinite`` at first makes gradients overflow in every precision: the first
    step is skipped, and ``update()`` sets a finite scale after it, as after every other step.
    ``growth_interval=1`` doubles a ``finite`` scale after every step. That of torch by ``default``
    makes gradients nearly as large as float16 allows, for hooks of DDP that average in that.
    """

    name, place = "grad_scaler", 100
    extension = Choice("grad_scaler", 12, 102, needs=("several_steps",))
    meanings = {
        "optimizer:scaled": "a GradScaler that doubles its scale after every step",
        "optimizer:skipped": "a GradScaler that skips the first step: it is infinite",
        "optimizer:scaled_high": "a GradScaler with torch's own first scale",
    }
    words: ClassVar[Mapping[str, str]] = {"infinite": "skipped", "default": "scaled_high"}

    @override
    def features(self, value: str) -> Iterator[str]:
        yield f"optimizer:{self.words.get(value, 'scaled')}"

    @override
    def value(self, drawing: DrawingOptimizer) -> str | None:
        if self.name not in drawing.swarm:
            return None
        return "infinite" if drawing.tape.chance(40) else "finite"


class Beside(OptimizerOption):
    """The class of a second optimizer, which gets what the first does not get.

    Of Muon: "Other parameters, such as bias, and embedding, should be optimized by a standard
    method such as AdamW" (torch/optim/_muon.py). "If your network has multiple optimizers, you may
    call scaler.unscale_ on any of them individually, and you must call scaler.step on each of them
    individually. However, scaler.update should only be called once" (amp_examples.rst).
    ``get_optimizer_state_dict`` takes both at once.
    """

    name = "beside"
    extension = Choice("second_optimizer", 10, 104, needed_by=("muon",), brings=("grad_scaler",))
    meanings = {"optimizer:second": "a second optimizer, for what the first does not get"}

    @override
    def value(self, drawing: DrawingOptimizer) -> str | None:
        if "second_optimizer" not in drawing.swarm or drawing.tape.chance(20):
            return None
        exact = drawing.case.values == "dyadic"
        return "sgd" if exact or drawing.tape.chance(30) else "adamw"


_ADAMS, _GRADUAL = ("adam", "adamw"), ("adam", "adamw", "adamax", "nadam", "radam")
_ACCUMULATED = 0.25
_BETAS = "betas=(0.75, 0.9), eps=1e-06"
_NUMBERS = {
    **dict.fromkeys(("adam", "adamw", "adamax", "radam"), _BETAS),
    "nadam": f"{_BETAS}, momentum_decay=0.0625",
    "rmsprop": "alpha=0.75, eps=1e-06",
    "adadelta": "rho=0.75, eps=0.001",
    "asgd": "lambd=0.0625, alpha=0.5, t0=1.0",
    "adagrad": f"lr_decay=0.0625, initial_accumulator_value={_ACCUMULATED}, eps=1e-06",
    "adafactor": "beta2_decay=-0.5, eps=(1e-06, 0.01), d=2.0",
    "rprop": "etas=(0.25, 1.5), step_sizes=(0.0001, 1.0)",
    **dict.fromkeys(
        _MUON,
        "nesterov=False, ns_coefficients=(3.0, -3.2, 1.2), eps=1e-06, ns_steps=3, "
        'adjust_lr_fn="match_rms_adamw"',
    ),
}


class _Flag(NamedTuple):
    """What it means, and the arguments that stand for it, of the classes that document it."""

    meaning: str
    arguments: Mapping[str, str]


_FLAGS = {
    "fused": _Flag("fused=True", dict.fromkeys(("sgd", *_ADAMS, "adagrad"), "fused=True")),
    "amsgrad": _Flag("Adam or AdamW with amsgrad", dict.fromkeys(_ADAMS, "amsgrad=True")),
    "nesterov": _Flag("SGD with Nesterov momentum", {"sgd": "nesterov=True"}),
    "dampening": _Flag("SGD with a momentum that is dampened", {"sgd": "dampening=0.5"}),
    "centered": _Flag("RMSprop that is centered", {"rmsprop": "centered=True"}),
    "decoupled_weight_decay": _Flag(
        "an optimizer with decoupled_weight_decay",
        dict.fromkeys(("adam", "nadam", "radam"), "decoupled_weight_decay=True"),
    ),
    "tensor_lr": _Flag(
        "a learning rate that is a tensor",
        dict.fromkeys((kind for kind in _CLASSES if kind not in _MUON), ""),
    ),
    "capturable": _Flag(
        "an optimizer that can be captured in a CUDA graph",
        dict.fromkeys((*_GRADUAL, "adadelta", "asgd", "rmsprop", "rprop"), "capturable=True"),
    ),
    "other_numbers": _Flag("an optimizer whose numbers are not torch's defaults", _NUMBERS),
    "vectors_apart": _Flag(
        "two groups of parameters, of which one has no weight decay and half the learning rate",
        {kind: "" for kind in _CLASSES if kind not in ("rprop", *_MUON)},
    ),
}
"""Arguments of the class that are off their defaults, a word for each."""

if TYPE_CHECKING:
    Flag = str
    Kinds = str
else:  # what msgspec decodes goes by the names
    Flag = Literal[*_FLAGS]
    Kinds = Literal[*_CLASSES]


def flag_misfits(spec: Optimizer) -> Reasons:
    """Yield why it does not take its flags."""
    for flag in spec.flags:
        if spec.kind not in _FLAGS[flag].arguments:
            yield f"{spec.kind} has no {flag}", "remove it"
    has = {*spec.flags}
    if len(has) < len(spec.flags):
        yield "a flag is named twice", "name it once"
    if has & {"nesterov", "dampening"} and not spec.momentum:
        yield "nesterov and dampening are of a momentum", "give it one"
    if {"nesterov", "dampening"} <= has:
        yield "'Nesterov momentum requires a momentum and zero dampening'", "use one of them"
    if "fused" in has and spec.foreach:
        yield "'`fused` and `foreach` cannot be `True` together'", "use one of them"
    if "tensor_lr" in has and spec.foreach and "capturable" not in has:
        yield (
            "'lr as a Tensor is not supported for capturable=False and foreach=True'",
            "use one of them",
        )


class Flags(OptimizerOption):
    """Arguments of the class, as far as it has them and they go together.

    ``fused`` is what torchtitan trains with (torchtitan/components/optimizer.py). The reference is
    stepped without it, so that what fused operators do wrong themselves shows. A learning rate may
    be a tensor. ``other_numbers`` are all numbers that are at their defaults otherwise. With
    ``vectors_apart`` biases and scales are in a group of parameters without weight decay, and with
    half the learning rate: most often where states are saved, which have that of every group.
    """

    name = "flags"
    sources = """
def vectors_apart(parameters, rate):  # without weight decay
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr": rate}]
    return [group for group in groups if group["params"]] or groups[:1]
"""
    extension = Choice("optimizer_flags", 18, 105, brings=("adam", "momentum"))
    meanings = {f"optimizer:{name}": flag.meaning for name, flag in _FLAGS.items()}

    @override
    def given(self, value: tuple[Flag, ...], optimizer: Optimizer) -> tuple[str, ...]:
        told = (_FLAGS[flag].arguments.get(optimizer.kind) for flag in value)
        return tuple(text for text in told if text)

    @override
    def features(self, value: tuple[Flag, ...]) -> Iterator[str]:
        yield from (f"optimizer:{flag}" for flag in value)

    @override
    def needs_cuda(self, value: tuple[Flag, ...]) -> str | None:
        return "a capturable optimizer needs CUDA" if "capturable" in value else None

    @override
    def value(self, drawing: DrawingOptimizer) -> tuple[Flag, ...]:
        apart = "save_load" in drawing.swarm and drawing.tape.chance(40)
        if "optimizer_flags" not in drawing.swarm:
            return ("vectors_apart",) if apart else ()
        drawn = [flag for flag in _FLAGS if drawing.tape.chance(35 if flag == "tensor_lr" else 60)]
        return tuple(flag for flag in drawn if drawing.cuda or flag != "capturable")


OPTIMIZER_OPTIONS = options_of(Optimizer, OptimizerOption)
"""In the order of their fields."""
