"""fuzzshard itself fails where it looks at gradients, within the step of an optimizer."""

from typing import Any

from fuzzshard.subject.training import Trainer


def apply() -> None:
    def wrong(self: Trainer, step: int) -> Any:
        return {}[step]

    Trainer.note_gradients = wrong
