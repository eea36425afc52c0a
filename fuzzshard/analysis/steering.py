"""What a campaign is to draw: globs over the names of features, and what they ask of a case."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shlex
from collections.abc import Iterable, Set

from fuzzshard.analysis.feature_names import FEATURES, NEEDED_RANKS, ON_CUDA, ONE_OF
from fuzzshard.analysis.feature_words import check_glob, dimension_of, matching
from fuzzshard.case.case import ALL_ENGINES, Case, EngineName
from fuzzshard.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steering:
    """Which cases are drawn.

    A case has a feature that matches each glob of ``require``, and none that matches one of
    ``exclude``. Of the dimensions of a glob of ``only`` it has none but those that some glob of
    ``only`` matches. ``A|B`` matches what A or B does. ``focus`` is a case that those drawn are to
    be near, and ``focus_name`` what the user calls it.

    Raises :class:`UsageError` for a glob that matches no feature, and for globs that leave nothing
    of one another.
    """

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    focus: Case | None = None
    focus_name: str = ""

    def __post_init__(self) -> None:
        for option, globs in self._globs():
            for glob in globs:
                check_glob(glob, f"--{option} {shlex.quote(glob)}")
        for glob in self.require:
            if matching(glob) <= self.forbidden:
                raise UsageError(
                    f"--require {shlex.quote(glob)} leaves no case to draw: "
                    f"{self.forbidding(min(matching(glob)))} rules it out",
                    "leave one of the two out",
                )
        if not self.engines:
            raise UsageError(
                f"no engine is left by {' '.join(self.words)}",
                f"leave one of {', '.join(ALL_ENGINES)}",
            )

    @functools.cached_property
    def forbidden(self) -> frozenset[str]:
        """The features that no case has."""
        allowed = matching("|".join(self.only))
        dimensions = {dimension_of(feature) for feature in allowed}
        others = {f for f in FEATURES if dimension_of(f) in dimensions} - allowed
        return matching("|".join(self.exclude)) | others

    @property
    def engines(self) -> tuple[EngineName, ...]:
        """The engines that cases may have."""
        return tuple(name for name in ALL_ENGINES if f"engine:{name}" not in self.forbidden)

    @property
    def of_engines_alone(self) -> bool:
        """Whether nothing is asked but which engines cases may have, if that."""
        ruled_out = all(dimension_of(feature) == "engine" for feature in self.forbidden)
        return ruled_out and not self.require and self.focus is None

    @property
    def words(self) -> tuple[str, ...]:
        """The options that stand for this on the command line."""
        words = [f"--{o} {shlex.quote(glob)}" for o, globs in self._globs() for glob in globs]
        return (*words, *([f"--focus {self.focus_name}"] if self.focus is not None else []))

    def requiring(self, features: Iterable[str]) -> Steering:
        """Return the same with these features required too."""
        return dataclasses.replace(self, require=(*self.require, *features))

    def faults(self, present: Set[str]) -> tuple[int, ...]:
        """Count what is wrong with a case with these features.

        First the features that it must not have, then for each glob of ``require`` 1 if no feature
        matches. All are 0 for a case that is as asked.
        """
        missing = (int(matching(glob).isdisjoint(present)) for glob in self.require)
        return (len(self.forbidden & present), *missing)

    def allows(self, present: Set[str]) -> bool:
        """Tell whether a case with these features is as asked."""
        return not any(self.faults(present))

    def check_possible(self, *, world_size: int, cuda: bool) -> None:
        """Raise :class:`UsageError` where the names of features show that no case is as asked."""
        for glob in self.require:
            wanted = matching(glob) - self.forbidden
            ranks = min(NEEDED_RANKS.get(feature, 1) for feature in wanted)
            if ranks > world_size:
                raise UsageError(
                    f"--require {shlex.quote(glob)} needs {ranks} ranks, and a world has "
                    f"{world_size}",
                    f"use --world-size {ranks} or more",
                )
            if wanted <= ON_CUDA and not cuda:
                raise UsageError(
                    f"--require {shlex.quote(glob)} needs CUDA", "leave it out on a CPU"
                )
        for names in ONE_OF:
            left = names - self.forbidden
            if not left:
                raise UsageError(
                    f"every case has one of {', '.join(sorted(names))}, and "
                    f"{' '.join(self.words)} rules out all of them",
                    "leave something out",
                )
            alone = [glob for glob in self.require if matching(glob) <= names]
            for one, other in itertools.combinations(alone, 2):
                if matching(one).isdisjoint(matching(other)):
                    raise UsageError(
                        f"no case has both {one} and {other}", "leave one of the two out"
                    )

    def complaints(self, present: Set[str]) -> list[str]:
        """Say what is wrong with a case with these features."""
        surplus = (
            f"has {feature}, which {self.forbidding(feature)} rules out"
            for feature in sorted(self.forbidden & present)
        )
        missing = (g for g in self.require if matching(g).isdisjoint(present))
        return [*surplus, *(f"has no {glob}" for glob in missing)]

    def forbidding(self, feature: str) -> str:
        """Return the options that rule a forbidden feature out."""
        for glob in self.exclude:
            if feature in matching(glob):
                return f"--exclude {shlex.quote(glob)}"
        dimension = dimension_of(feature)
        return " ".join(
            f"--only {shlex.quote(glob)}"
            for glob in self.only
            if dimension in map(dimension_of, matching(glob))
        )

    def _globs(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("only", self.only), ("exclude", self.exclude), ("require", self.require))


ANYTHING = Steering()
