"""Help texts flow: the terminal breaks the lines of a description, not the source."""

from __future__ import annotations

from fuzzshard.commands.usage import with_flowing_help


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
    assert with_flowing_help(command) is command
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
