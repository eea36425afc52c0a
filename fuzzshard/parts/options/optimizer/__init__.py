"""The optimizer and its options. To add one: its file, and its field here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.option import Drawing, Mapping, Option, Tape, WithOptions, options_of
from fuzzshard.parts.part import default_of, off_default

Trait = Literal[
    "takes_momentum",
    "decays_by_default",
    "moves_without_gradient",
    "has_state",
    "steps_lists",
    "may_step_lists",
    "combines_elements",
    "steps_matrices",
    "hands_over_event",
    "scales",
    "wants_own_dtype",
]
"""What values do that somebody else has to know: the class takes ``momentum``, or decays weights
unless it is told otherwise; a gradient of zeros is not the same as none; a step leaves a state;
parameters are stepped, or may be, in lists that must be alike; a step combines the elements of a
parameter, so that shards communicate; parameters are matrices; an event is recorded after a step;
losses are scaled, and steps unscale gradients; a gradient is of the dtype of its parameter.
"""


class Optimizer(WithOptions["OptimizerOption", Trait], frozen=True, kw_only=True):
    """The optimizer and its hyperparameters."""

    named_by: ClassVar[str] = "kind"

    kind: Literal[
        "sgd",
        "adam",
        "adamw",
        "rmsprop",
        "adadelta",
        "adamax",
        "nadam",
        "radam",
        "asgd",
        "adagrad",
        "adafactor",
        "muon",
        "muon_unrounded",
    ] = "sgd"
    lr: float = 0.125
    momentum: float = 0.0
    weight_decay: float = 0.0
    foreach: bool | None = None
    exclude: tuple[str, ...] = ()
    post_optim_event: bool = False
    maximize: bool = False
    lr_scheduler: Literal["step_lr", "cosine_annealing_lr", "one_cycle_lr"] | None = None
    grad_scaler: Literal["finite", "infinite"] | None = None
    beside: Literal["sgd", "adamw"] | None = None

    @property
    def title(self) -> str:
        """What it is called."""
        return str(getattr(self, self.named_by))

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

    @override
    def does(self, trait: Trait) -> bool:
        return super().does(trait) or (self.second is not None and self.second.does(trait))

    @property
    def states(self) -> tuple[str, ...]:
        """The names of what is kept for a parameter."""
        told = (pair for each in self.each.values() for pair in each.told())
        return tuple(dict.fromkeys(name for o, value in told for name in o.states(value)))

    @property
    def scheduler(self) -> str:
        """The expression of what changes the learning rate of ``optimizer``, or nothing."""
        return "".join(option.scheduler(value) for option, value in self.told())

    @property
    def scaler(self) -> str:
        """The expression of what scales losses, or nothing."""
        return "".join(option.scaler(value) for option, value in self.told())

    def step_lines(self) -> list[str]:
        """Return the statements of a step."""
        scaled = [*(f"scaler.step({name})" for name in self.each), *self._updates()]
        steps = scaled if self.scaler else [f"{name}.step()" for name in self.each]
        for around in (around for o, value in self.told() if (around := o.around(value))):
            steps = [f"with {around}:", *(f"    {line}" for line in steps)]
        return [*steps, *(["scheduler.step()"] if self.scheduler else [])]

    def _updates(self) -> list[str]:
        return [line for option, value in self.told() if (line := option.update(value))]

    def initially(self, state: str) -> float | None:
        """Return what each element of a state is before the first step; None where that depends
        on the learning rate by then.
        """
        rate = None if self.scheduler else self.lr
        return {"eta": rate, "mu": 1.0, "mu_product": 1.0}.get(state, 0.0)

    @property
    def set_apart(self) -> tuple[str, ...]:
        """The modules or parameters that it does not get; the second one does."""
        return tuple(path for option, paths in self.told() if option.leaves_out for path in paths)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The modules or parameters that no optimizer gets."""
        return () if self.beside else self.set_apart

    def leaving_out(self, paths: Iterable[str]) -> Optimizer:
        """Return it without these, and with all others; a second one must get something."""
        paths = tuple(paths)
        named = {option.name: paths for option in OPTIMIZER_OPTIONS if option.leaves_out}
        return replace(self, **named, beside=self.beside if paths else None)

    def for_matrices(self, shapes: Mapping[str, Sequence[int]]) -> Optimizer:
        """Return it without parameters that are no matrices, and without what optimizers of
        matrices do not take.
        """
        lacking = (option for option in OPTIMIZER_OPTIONS if not option.for_matrices)
        spec = replace(self, **{option.name: option.default for option in lacking})
        return spec.leaving_out(fqn for fqn, shape in shapes.items() if not self.takes(shape))

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether it steps parameters of such a shape."""
        return len(shape) == 2 or not self.does("steps_matrices")

    def unrounded(self) -> Optimizer:
        """Return it with steps that round to no coarser dtype than that of the parameters."""
        return replace(self, **{o.name: o.unrounded(value) for o, value in self.told()})

    def in_turn(self) -> Optimizer:
        """Return it with steps of one parameter after the other, and not of lists."""
        return replace(self, foreach=False)

    def unscaled(self) -> Optimizer:
        """Return it without a scaler of losses."""
        scaling = (option.name for option, value in self.told() if option.scaler(value))
        return replace(self, **{name: default_of(self, name) for name in scaling})

    def call(self) -> tuple[str, list[str]]:
        """Return its class, and the arguments that are not torch's defaults."""
        kinds = [text for option, value in self.told() if (text := option.constructor(value))]
        given = [text for option, value in self.told() for text in option.given(value, self)]
        return f"torch.optim.{kinds[0]}", given

    def features(self) -> Iterator[str]:
        """Yield the features of its options."""
        off = {*off_default(self)}
        for option, value in self.told():
            if option.name in off or option.name == self.named_by:
                yield from option.features(value)

    def without_extensions(self) -> Optimizer:
        """Return it with what is drawn last at its default."""
        late = ((o, value) for o, value in self.told() if o.extension)
        return replace(self, **{o.name: o.without_extension(value) for o, value in late})

    def text(self) -> str:
        """Return what drawings say of it."""
        off = {*off_default(self)}
        given = ", ".join(
            f"{option.name}={value}"
            for option, value in self.told()
            if option.always_told or (option.name in off and option.name != self.named_by)
        )
        return f"{self.title}({given})"


class OptimizerOption(Option):
    """One of them."""

    traits: ClassVar[Mapping[Any, tuple[Trait, ...]]] = {}
    leaves_out: ClassVar[bool] = False
    """Whether its value is what the optimizer does not get."""
    for_matrices: ClassVar[bool] = True
    """Whether optimizers of matrices take it."""
    sources: ClassVar[Mapping[str, str]] = {}
    """What its statements call and torch does not have, by name."""

    def states(self, value: Any) -> tuple[str, ...]:
        """Return the names of what the optimizer keeps, where it says which class that is."""
        return ()

    def constructor(self, value: Any) -> str:
        """Return the class, where it says which."""
        return ""

    def given(self, value: Any, optimizer: Optimizer) -> tuple[str, ...]:
        """Return the arguments of the class that stand for it."""
        return self.arguments(value)

    def around(self, value: Any) -> str:
        """Return the expression of a context manager that steps are made in, or nothing."""
        return ""

    def unrounded(self, value: Any) -> Any:
        """Return the value whose steps round to no coarser dtype than that of the parameters."""
        return value

    def without_extension(self, value: Any) -> Any:
        """Return what it is without what is drawn last."""
        return self.default

    def scheduler(self, value: Any) -> str:
        """Return the expression of a scheduler of the learning rate, where it says which."""
        return ""

    def scaler(self, value: Any) -> str:
        """Return the expression of a scaler of losses, where it says which."""
        return ""

    def update(self, value: Any) -> str:
        """Return the update of the scaler, where it says how."""
        return ""

    def features(self, value: Any) -> Iterator[str]:
        """Yield the features of a value off its default."""
        yield from self.meanings

    def value(self, drawing: Drawing) -> Any:
        """Return a value for a case that has its model and its plan, if that is drawn then."""
        return self.name in drawing.swarm

    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        """Return ``spec`` with a value; with ``exact`` one that rounds nothing."""
        return spec

    def settle(self, tape: Tape, spec: Optimizer, *, exact: bool) -> Optimizer:
        """Return ``spec`` with the value that goes with those of the others."""
        return spec


OPTIMIZER_OPTIONS = options_of(Optimizer, __name__, __path__, OptimizerOption)
"""In the order of their fields."""


def choosing(trait: Trait) -> tuple[str, ...]:
    """Return the choices of drawn cases that may lead to a value with this trait."""
    return tuple(o.extension.name for o in OPTIMIZER_OPTIONS if o.extension and o.may(trait))
