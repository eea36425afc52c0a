"""Commands are imported when they are called; the help of one is its docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable
from typing import NamedTuple, get_type_hints

from cyclopts import App
from cyclopts.command_spec import CommandSpec


class Command(NamedTuple):
    """A command: its ``name``, the ``place`` of its function (``module:name``) among the commands,
    and ``line``, the first line of its docstring.
    """

    name: str
    place: str
    line: str


def with_flowing_help(command: object) -> None:
    """Let the terminal break the lines of each parameter's description, as wide as it is.

    ``command`` is the function of a command, or a group of options.
    """
    head, rule, parameters = inspect.cleandoc(command.__doc__ or "").partition("\n----------\n")
    block = r"(?<=\n) {4}\S[^\n]*(?:\n {4}\S[^\n]*)*"
    flowing = re.sub(block, lambda b: f"    {' '.join(b[0].split())}", f"\n{parameters}")
    command.__doc__ = f"{head}{rule}{flowing[1:]}"


class _Imported(CommandSpec):
    """A command that is imported when it is called. Until then its ``help`` is one line."""

    def resolve(self, parent_app: App) -> App:
        """Import the command, and take its docstring for its help."""
        if not self.is_resolved:
            self.help = None
            command = super().resolve(parent_app).default_command
            assert command is not None
            groups = filter(dataclasses.is_dataclass, get_type_hints(command).values())
            for told in (command, *groups):
                with_flowing_help(told)
        return super().resolve(parent_app)


def add_command(
    app: App, command: Command, order: int, *, epilogue: str = "", **settings: object
) -> None:
    """Give ``app`` a command, which is not imported for that."""
    app._commands[command.name] = _Imported(
        import_path=f"fuzzshard.commands.{command.place}",
        name=command.name,
        help=command.line,
        sort_key=order,
        app_kwargs={"help_epilogue": epilogue, **settings},
    )


def group_app(name: str, sort_key: int, text: str, commands: Iterable[Command]) -> App:
    """Return the group ``name`` of commands, in their order; ``text`` is its help."""
    app = App(
        name=name,
        sort_key=sort_key,
        help=text,
        help_epilogue="",
        help_format="plaintext",
        version_flags=(),
    )
    for order, command in enumerate(commands):
        add_command(app, command, order)
    return app
