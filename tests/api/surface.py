"""The public names of an API of torch, and the table that says what becomes of each.

A name is ``function(argument)``, ``Class(argument)`` for its constructor, ``Class.method``,
``Class.method(argument)``, ``Class.property``, ``Class.field`` or ``Enum.MEMBER``. Private names
are left out. A table is a TOML file of three parts:

- ``drawn``: a name and the features (``analysis/feature_names.py``) of a case that uses it, all in
  one case;
- ``excused``: a name and why no case needs to use it, which holds for a method's arguments too;
- ``releases``: which releases of torch have a name of the other two parts, where not all have it.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from streams import Drawn, Streams, reach_first

from fuzzshard.analysis.feature_names import FEATURES

_CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def names_of_function(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """The arguments of a function or of a constructor; ``*args`` and ``**kwargs`` have no
    names.
    """
    parameters = inspect.signature(function).parameters.values()
    yield from (
        f"{name}({p.name})" for p in parameters if p.kind not in _CATCH_ALL and p.name != "self"
    )


def names_of_class(cls: type, *, constructor: bool = True) -> Iterator[str]:
    """What ``cls`` itself defines: its constructor's arguments, its methods, its properties."""
    name = cls.__name__
    if constructor:
        yield from names_of_function(name, cls)
    for attribute, value in vars(cls).items():
        if attribute.startswith("_") or isinstance(value, type):
            continue
        if isinstance(value, property):
            yield f"{name}.{attribute}"
        elif callable(bound := getattr(cls, attribute)):
            yield f"{name}.{attribute}"
            yield from names_of_function(f"{name}.{attribute}", bound)


def names_of_values(cls: type) -> Iterator[str]:
    """The fields of a dataclass, those that it inherits too, or the members of an enum."""
    if issubclass(cls, enum.Enum):
        yield from (
            f"{cls.__name__}.{member.name}" for member in cls if not member.name.startswith("_")
        )
    else:
        names = (field.name for field in dataclasses.fields(cls))
        yield from (f"{cls.__name__}.{name}" for name in names if not name.startswith("_"))


def _is_reached(wanted: tuple[str, ...]) -> bool:
    """Whether a campaign draws a case with these features, if it asks for them."""
    return any(reach_first(*wanted, seed=Streams.SEED, cuda=cuda) for cuda in (False, True))


@dataclasses.dataclass(frozen=True)
class Table:
    """What a TOML file says of the names of one API."""

    path: Path
    drawn: dict[str, tuple[str, ...]]
    excused: dict[str, str]
    releases: dict[str, str]

    @classmethod
    def load(cls, stem: str) -> Table:
        """Reads the table ``stem`` of this folder."""
        path = Path(__file__).parent / f"{stem}.toml"
        parts: dict[str, dict[str, Any]] = tomllib.loads(path.read_text())
        drawn = {
            name: (f,) if isinstance(f, str) else tuple(f) for name, f in parts["drawn"].items()
        }
        return cls(path, drawn, parts["excused"], parts.get("releases", {}))

    def faults(self, public: Iterable[str]) -> list[str]:
        """What does not fit together in the table, and between it and the torch that has these
        names.
        """
        here, listed = set(public), self.drawn.keys() | self.excused.keys()
        excused = {name for name in here if name.partition("(")[0] in self.excused}
        expected = {name for name in listed if self._is_in_this_release(name)}
        faults = {
            "not in the table; draw it, or excuse it with a reason": here - listed - excused,
            "listed, and this torch has it not; name its releases, or remove it": expected - here,
            "listed for other releases, and this torch has it": (here & listed) - expected,
            "both drawn and excused": self.drawn.keys() & self.excused.keys(),
            "has releases, and is neither drawn nor excused": self.releases.keys() - listed,
            "excused without a reason": {
                name for name in self.excused if not self.excused[name].strip()
            },
            "drawn as a feature that there is not": {
                name
                for name, wanted in self.drawn.items()
                if not wanted or set(wanted) - FEATURES.keys()
            },
        }
        return [f"{name}: {fault}" for fault, names in faults.items() for name in sorted(names)]

    def undrawn(self, cases: Iterable[Drawn]) -> list[str]:
        """Names of which none of the cases has the features."""
        return [f"{n}: {' with '.join(wanted)}" for n, wanted in self._left(cases).items()]

    def unreached(self, streams: Streams) -> list[str]:
        """Names of which no case of the streams has the features, nor one that a campaign draws
        which asks for them.
        """
        left = self._left(streams.each())
        reached = {wanted for wanted in {*left.values()} if _is_reached(wanted)}
        return [name for name, wanted in left.items() if wanted not in reached]

    def _left(self, cases: Iterable[Drawn]) -> dict[str, tuple[str, ...]]:
        left = dict(self.drawn)
        for case in cases:
            left = {n: wanted for n, wanted in left.items() if not case.features >= {*wanted}}
            if not left:
                break
        return left

    def _is_in_this_release(self, name: str) -> bool:
        releases = SpecifierSet(self.releases.get(name, ""))
        return releases.contains(version("torch"), prereleases=True)
