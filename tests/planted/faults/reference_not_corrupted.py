"""Corrupting does nothing, under any engine: resuming would prove nothing."""

from fuzzshard.training import trainer


def apply() -> None:
    trainer.zero = lambda training: None
