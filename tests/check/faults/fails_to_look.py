"""fuzzshard itself fails where it looks at gradients, within the step of an optimizer."""

from typing import Any

from fuzzshard.subject.training import Side


def apply() -> None:
    def wrong(self: Side, step: int) -> Any:
        return {}[step]

    Side.note_gradients = wrong
