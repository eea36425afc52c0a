"""Leaf modules: which kinds a case may use and what each looks like at a given width."""

from __future__ import annotations

from fuzzshard.parts.leaf import DrawingLeaf, Kind, Leaf, Role
from fuzzshard.parts.leaves import KINDS, kinds_for
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_DRAWN = sorted(
    (kind for kind in KINDS if kind.in_swarms),
    key=lambda kind: (not KINDS[kind].has_parameters, "sequence" in KINDS[kind].takes),
)
_PLAIN = _DRAWN[0]
"""What takes the place of kinds that a case may not use."""


class Leaves:
    """Draws leaves of the kinds that a case may use."""

    def __init__(
        self,
        tape: Tape,
        swarm: Swarm,
        pool: tuple[int, ...],
        *,
        sequence: bool,
        exact: bool,
        sharing: int = 1,
    ) -> None:
        """``sharing`` ranks are to have as many experts each."""
        self.tape, self.swarm, self.pool, self.exact = tape, swarm, pool, exact
        self.sequence, self.sharing = sequence, sharing
        self.keeping = [
            kind
            for kind in _DRAWN
            if kind.name in swarm
            and (sequence or "sequence" not in KINDS[kind].takes)
            and (kind.exact or not exact)
        ]
        self.changing = [kind for kind in self.keeping if kind.resizes] or [_PLAIN]
        if not any(KINDS[kind].has_parameters for kind in self.keeping):
            self.keeping = [_PLAIN, *self.keeping]
        self.training = [
            kind for kind in self.keeping if KINDS[kind].has_parameters and not kind.saves_result
        ] or [_PLAIN]

    def any(self, width: int) -> Leaf:
        """Return a leaf for a value of ``width``; where its kind may change the width, it may."""
        kind = self.tape.pick(self.keeping)
        return self._make(kind, width, self.tape.pick(self.pool) if kind.resizes else width)

    def with_parameters(self, width: int) -> Leaf:
        """Return a leaf that has parameters; no backward of such a leaf needs its result."""
        kind = self.tape.pick(self.training)
        return self._make(kind, width, self.tape.pick(self.pool) if kind.resizes else width)

    def for_role(self, role: Role, width: int, out: int = 0) -> Leaf:
        """Return a leaf for a role, of a value, ids or an image of ``width``; to ``out``, or where
        its kind may change the width, it may.
        """
        kinds = kinds_for(role)
        if len(kinds) > 1:
            kinds = tuple(kind for kind in kinds if kind.name in self.swarm) or kinds
            kinds = (self.tape.pick(kinds),)
        out = out or (self.tape.pick(self.pool) if kinds[0].resizes else width)
        return self._make(kinds[0], width, out)

    def to_width(self, width: int, out: int, *, trains: bool = False) -> Leaf:
        """Return a leaf that takes a value of ``width`` to one of ``out`` features; one with
        parameters, if it ``trains``.
        """
        alike = self.training if trains else self.keeping
        return self._make(self.tape.pick(alike if width == out else self.changing), width, out)

    def _make(self, kind: Kind, width: int, out: int) -> Leaf:
        assert kind.draw is not None
        return kind.draw(
            DrawingLeaf(self.tape, width, out, self.pool, self.exact, self.sharing, self.sequence)
        )
