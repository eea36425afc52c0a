"""Help texts flow: the terminal breaks the lines of a description, not the source."""

from __future__ import annotations

import importlib

import pytest
from command_line import ran

from fuzzshard import cli
from fuzzshard.commands.usage import Command, with_flowing_help

GROUPS = {(): cli.COMMANDS, ("corpus",): cli.CORPUS_COMMANDS, ("fleet",): cli.FLEET_COMMANDS}
ALL = [(group, command) for group, commands in GROUPS.items() for command in commands]


def command(path: str, seed: int) -> int:
    """Do something.

    A first line of prose that
    stays as it is.

    For example:
      fuzzshard command

    Parameters
    ----------
    path
        One line
        and another.
    seed
        A number.
    """
    return len(path) + seed


def test_descriptions_of_parameters_become_one_line_each_and_the_rest_stays() -> None:
    with_flowing_help(command)
    assert (command.__doc__ or "").splitlines() == [
        "Do something.",
        "",
        "A first line of prose that",
        "stays as it is.",
        "",
        "For example:",
        "  fuzzshard command",
        "",
        "Parameters",
        "----------",
        "path",
        "    One line and another.",
        "seed",
        "    A number.",
    ]


@pytest.mark.parametrize(
    ("group", "command"), ALL, ids=[" ".join((*group, command.name)) for group, command in ALL]
)
def test_the_line_of_a_command_is_the_first_of_its_docstring(
    group: tuple[str, ...], command: Command
) -> None:
    module, _, name = command.place.partition(":")
    text = getattr(importlib.import_module(f"fuzzshard.commands.{module}"), name).__doc__
    assert command.line == text.splitlines()[0]

    help_text = ran(*group, command.name, "--help").out
    assert "For example" in help_text, "its own help is the whole docstring"
    assert command.line.split()[-1] in help_text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_all_commands_and_their_options(shell: str) -> None:
    script = cli.app.generate_completion(prog_name="fuzzshard", shell=shell)
    assert all(command.name in script for _, command in ALL)
    options = ("max-time", "allow-user-code", "world-nodes", "known")
    assert all(option in script for option in options)
