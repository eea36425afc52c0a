"""Leaf modules: which kinds a case may use and what each looks like at a given width."""

from __future__ import annotations

from fuzzshard.parts.leaf import Drawing, Kind, Leaf
from fuzzshard.parts.leaves import KINDS
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_DRAWN = sorted(
    (kind for kind in KINDS if kind.in_swarms),
    key=lambda kind: (not KINDS[kind].has_parameters, KINDS[kind].needs_sequence),
)
_PLAIN = _DRAWN[0]
"""What takes the place of kinds that a case may not use."""
_NORMS = tuple(kind for kind in _DRAWN if KINDS[kind].is_norm)
(_OF_IDS,) = (kind for kind, leaf in KINDS.items() if leaf.takes_ids)
(_OF_EXPERTS,) = (kind for kind, leaf in KINDS.items() if leaf.experts_at)
(_FUSED,) = (kind for kind, leaf in KINDS.items() if leaf.attends_at)
(_OF_IMAGES,) = (kind for kind, leaf in KINDS.items() if leaf.takes_images)


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
            and (sequence or not KINDS[kind].needs_sequence)
            and (kind.exact or not exact)
        ]
        self.changing = [kind for kind in self.keeping if kind.resizes] or [_PLAIN]
        if not any(KINDS[kind].has_parameters for kind in self.keeping):
            self.keeping = [_PLAIN, *self.keeping]
        self.training = [
            kind
            for kind in self.keeping
            if KINDS[kind].has_parameters and not KINDS[kind].saves_result
        ] or [_PLAIN]

    def any(self, width: int) -> Leaf:
        """A leaf for a value of ``width``; where its kind may change the width, it may."""
        kind = self.tape.pick(self.keeping)
        return self._make(kind, width, self.tape.pick(self.pool) if kind.resizes else width)

    def with_parameters(self, width: int) -> Leaf:
        """A leaf that has parameters; no backward of such a leaf needs its result."""
        kind = self.tape.pick(self.training)
        return self._make(kind, width, self.tape.pick(self.pool) if kind.resizes else width)

    def of_ids(self, vocab: int, out: int) -> Leaf:
        """A leaf that looks ids below ``vocab`` up."""
        return self._make(_OF_IDS, vocab, out)

    def of_image(self, size: int, out: int) -> Leaf:
        """A leaf that cuts an image of ``size`` features into patches of ``out`` features each."""
        return self._make(_OF_IMAGES, size, out)

    def norm(self) -> Leaf:
        """A norm over the features."""
        return self._make(
            self.tape.pick([kind for kind in _NORMS if kind.name in self.swarm] or _NORMS), 0, 0
        )

    def mixture(self, width: int) -> Leaf:
        """A mixture of experts."""
        return self._make(_OF_EXPERTS, width, self.tape.pick(self.pool))

    def fused(self, width: int) -> Leaf:
        """Attention by one kernel."""
        return self._make(_FUSED, width, width)

    def to_width_with_parameters(self, width: int, out: int) -> Leaf:
        """As :meth:`to_width`, and it has parameters."""
        return self._make(
            self.tape.pick(self.training if width == out else self.changing), width, out
        )

    def to_width(self, width: int, out: int) -> Leaf:
        """A leaf that takes a value of ``width`` to one of ``out`` features."""
        return self._make(
            self.tape.pick(self.keeping if width == out else self.changing), width, out
        )

    def _make(self, kind: Kind, width: int, out: int) -> Leaf:
        assert kind.draw is not None
        drawing = Drawing(self.tape, width, out, self.pool, self.exact)
        return kind.draw(drawing).shared_by(self.sharing)
