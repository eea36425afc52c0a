"""What every option of an engine says of itself; generic code asks this, and never which option it
is.

An option is a field of a part of a case (:class:`WithOptions`), or a word of
``WrapGroup.communication``. What it means is written once, as a script writes it: ranks evaluate
the same arguments and run the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from fuzzshard.parts.op import Choice
from fuzzshard.parts.op import Reasons as Reasons
from fuzzshard.parts.part import Part, below, defaults

if TYPE_CHECKING:  # what an option is shown of the layers above, for types alone
    from fuzzshard.analysis.arrivals import Replicated as Replicated
    from fuzzshard.analysis.communication import Told as Told
    from fuzzshard.analysis.inferred import Inferred as Inferred
    from fuzzshard.case.case import Case as Case
    from fuzzshard.strategies.engine_options import DrawingFSDP1 as DrawingFSDP1
    from fuzzshard.strategies.engine_options import DrawingOptimizer as DrawingOptimizer
    from fuzzshard.strategies.groups import DrawingGroups as DrawingGroups
    from fuzzshard.strategies.tape import Tape as Tape
else:  # nobody looks at annotations when it runs
    Case = DrawingOptimizer = DrawingFSDP1 = DrawingGroups = Inferred = Replicated = None
    Tape = Told = None


class Option:
    """One option; ``value`` is the one that a case has."""

    name: ClassVar[str] = ""
    """Its field."""
    place: ClassVar[int] = 0
    """Its place among those of its engine when they are drawn."""
    argument: ClassVar[int] = 0
    """The place of its arguments among those of the others."""
    texts: ClassVar[Mapping[Any, str]] = {}
    """By value the arguments that it stands for, unless these are torch's defaults."""
    sources: ClassVar[str] = ""
    """The functions that a script calls for it (:attr:`fuzzshard.parts.op.Op.sources`)."""
    meanings: ClassVar[Mapping[str, str]] = {}
    """What each of its features means."""
    prefix: ClassVar[str] = ""
    """What the names of its features begin with, where a value follows."""
    choices: ClassVar[tuple[str, ...]] = ()
    """Choices that every swarm may make."""
    extension: ClassVar[Choice | None] = None
    """The choice of swarms without which it is at its default."""
    weights: ClassVar[tuple[tuple[Any, int], ...]] = ()
    """Its values with how often each is drawn, where no case makes a difference."""
    rare: ClassVar[tuple[Any, int] | None] = None
    """Or the value that it has in so many percent of the cases; in all others it is at its
    default.
    """
    always_told: ClassVar[bool] = False
    """Whether drawings say it at its default too."""
    default: Any = None
    """What it is unless a case says otherwise."""

    def by_chance(self, tape: Tape) -> Any:
        """Draw a value by ``weights`` or ``rare``; the default without both."""
        if self.weights:
            return tape.weighted(self.weights)
        return self.rare[0] if self.rare and tape.chance(self.rare[1]) else self.default

    def named(self, value: Any) -> Iterator[str]:
        """Yield the features of a value: the one that there is, off the default, or its own."""
        if len(self.meanings) == 1 and value != self.default:
            yield from self.meanings
        yield from {f"{self.prefix}{value}".lower()} & self.meanings.keys()

    def arguments(self, value: Any) -> tuple[str, ...]:
        """Return the arguments that the engine is given."""
        text = self.texts.get(value)
        return (text,) if text else ()

    def needs_cuda(self, value: Any) -> str | None:
        """Return why CPU ranks cannot have it, in one line; None if they can."""
        return None


O = TypeVar("O", bound=Option)  # noqa: E741


class WithOptions(Part, Generic[O], frozen=True):
    """A part of a case that has options ``O``."""

    options: ClassVar[Sequence[Any]] = ()
    """In the order of their fields."""

    def told(self) -> Iterator[tuple[O, Any]]:
        """Yield every option with its value."""
        return ((option, getattr(self, option.name)) for option in self.options)

    def arguments(self) -> list[str]:
        """Return the arguments that differ from torch's defaults."""
        given = sorted(self.told(), key=lambda pair: pair[0].argument)
        return [text for option, value in given for text in option.arguments(value)]

    def needs_cuda(self) -> str | None:
        """Return why CPU ranks cannot have it, in one line; None if they can."""
        reasons = (option.needs_cuda(value) for option, value in self.told())
        return next((reason for reason in reasons if reason), None)


def meanings_of(options: Iterable[Option]) -> dict[str, str]:
    """Return what each feature of these means."""
    return {name: text for option in options for name, text in option.meanings.items()}


def options_of(part: type[WithOptions[O]], kind: type[O]) -> tuple[O, ...]:
    """Return the options of ``part``, and tell it."""
    options = found_in(kind, [*defaults(part)])
    for option in options:
        option.default = defaults(part)[option.name]
    part.options = options
    return options


def found_in(kind: type[O], names: Sequence[str]) -> tuple[O, ...]:
    """Return the options of a kind, in the order of ``names``."""
    named = {option.name: option for option in (each() for each in below(kind)) if option.name}
    return tuple(named[name] for name in names)
