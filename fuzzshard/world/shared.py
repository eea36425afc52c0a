"""One warm world for callers that do not know in advance how many ranks they will need."""

from __future__ import annotations

import dataclasses

from fuzzshard.world.config import WorldConfig
from fuzzshard.world.world import World


class SharedWorld:
    """Keeps at most one world of ``config`` alive, and replaces it by a larger one where that is
    needed.

    Ranks beyond a case's mesh idle, so the largest world serves all cases. Nothing is started
    before the first :meth:`with_ranks`.
    """

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self._world: World | None = None

    def with_ranks(self, size: int) -> World:
        """A world of at least ``size`` ranks; it stays the owner's, and is not to be closed."""
        if self._world is None or self._world.config.size < size:
            self.close()
            self._world = World(dataclasses.replace(self.config, size=max(size, self.config.size)))
        return self._world

    def close(self) -> None:
        """Kills the ranks; the next use starts new ones."""
        if self._world is not None:
            self._world.close()
            self._world = None
