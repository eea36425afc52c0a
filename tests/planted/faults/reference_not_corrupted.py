"""Corrupting does nothing, under any engine: resuming would prove nothing."""

from fuzzshard.program.helpers import SOURCES


def apply() -> None:
    SOURCES["zero"] = "def zero(model, optimizer):\n    pass\n"
