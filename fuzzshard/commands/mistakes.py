"""What is wrong with a command line, in words without Python."""

from __future__ import annotations

import difflib
import re
import types
from typing import Any, Literal, Union, get_args, get_origin

from cyclopts import App, ArgumentCollection, CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnusedCliTokensError,
)

from fuzzshard.errors import did_you_mean

_KINDS: dict[object, str] = {int: "a whole number", float: "a number", bool: "true or false"}


def in_words(error: CycloptsError) -> str:
    """Say what is wrong, in one line, and which help says more."""
    command = " ".join(("fuzzshard", *(error.command_chain or ())))
    return f"{' '.join(_what(error).split()).rstrip('.')}; see {command} --help"


def whole_numbers(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse ``1.5`` where a whole number is asked for; cyclopts would round it."""
    for argument in arguments:
        for token in argument.tokens:
            if int in (argument.hint, *get_args(argument.hint)) and "." in token.value:
                raise CoercionError(token=token, argument=argument, target_type=int)


def _what(error: CycloptsError) -> str:
    match error:
        case UnusedCliTokensError(unused_tokens=[token, *_]):
            return f'"{token}" is one argument too many'
        case UnknownCommandError(unused_tokens=[token, *_]):
            names = [name for name in error.app or () if not name.startswith("-")]
            close = difflib.get_close_matches(token, names, n=1)
            return f'there is no command "{token}"{did_you_mean(*close)}'
        case MissingArgumentError(argument=argument) if argument is not None:
            name = error.keyword or argument.name
            tokens = list(error.root_input_tokens or ())
            if name not in tokens:
                return f"{name} is missing"
            given = next(iter(tokens[tokens.index(name) + 1 :]), "")
            if re.match(r"-[.\d]", given):  # taken for an option
                return f'{name} must not be negative, and is "{given}"'
            return f"{name} needs a value"
        case CoercionError(token=token) if token is not None:
            name = token.keyword or (error.argument.name if error.argument is not None else "")
            name += f" from {token.source}" if token.source not in ("", "cli") else ""
            if error.msg is not None:
                return f"{name}: {error.msg}"
            from fuzzshard.parts.engines import ENGINES, meant_by

            if get_args(error.target_type) == tuple(ENGINES):
                meant = did_you_mean(meant_by(token.value))
                return f'{name} takes {", ".join(ENGINES)}, not "{token.value}"{meant}'
            if kind := _kind(error.target_type):
                return f'{name} takes {kind}, not "{token.value}"'
    return str(error)


def _kind(hint: Any) -> str:
    """``"a whole number or auto"``; empty for what has no words here."""
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [_kind(each) for each in get_args(hint) if each is not type(None)]
        return " or ".join(kinds) if all(kinds) else ""
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint))) if len(get_args(hint)) == 1 else ""
    return _KINDS.get(hint, "")
