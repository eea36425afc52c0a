"""The command line in this process."""

from __future__ import annotations

import pytest

from fuzzshard import cli


def fuzzshard(*arguments: object) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code
