"""``fuzzshard run --profile NAME``: options that belong together, built in or from a
``pyproject.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyclopts import App, ArgumentCollection, CycloptsError

from fuzzshard.errors import UsageError

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "ci": {"seed": 1, "max-time": "5m", "max-findings": 1},
    "nightly": {"worlds": "auto", "max-time": "8h", "stop-after-no-new": "2h"},
    "soak": {"worlds": "auto", "confirm": 5},
    "dev": {"device": "cpu", "world-size": 2, "max-time": "1m", "shrink": False},
}
"""Keys are options of ``run`` without their dashes. A user's profile of the same name goes on
top.
"""

FILE = "pyproject.toml"
TABLE = ("tool", "fuzzshard", "profiles")


def apply_profile(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Gives every option that the command line leaves out the value that its profile has for it.

    Raises :class:`UsageError` for a profile that does not exist, and what cyclopts raises for a
    key that is no option and for a value of the wrong type.
    """
    chosen = [
        token.value
        for argument in arguments
        if "--profile" in argument.names
        for token in argument.tokens
    ]
    if not chosen:
        return
    name = chosen[-1]
    own = _own_profiles()
    if name not in PROFILES and name not in own:
        raise UsageError(
            f"there is no profile {name!r}",
            f"use one of {', '.join(sorted({*PROFILES, *own}))}, or write {_header(name)} in "
            f"{FILE}",
        )
    options = {**PROFILES.get(name, {})}
    options |= {key.replace("_", "-"): value for key, value in own.get(name, {}).items()}
    if "profile" in options:
        raise UsageError(f"the profile {name!r} names a profile", f"remove the key from {FILE}")
    where = f"the profile {name!r}" + (f" of {FILE}" if name in own else "")
    from cyclopts.config import Dict

    Dict({commands[-1]: options}, source=where)(app, commands, arguments)


def _own_profiles() -> Mapping[str, Mapping[str, Any]]:
    """The tables in the ``pyproject.toml`` of this directory, or of the nearest parent that has
    one.
    """
    from cyclopts.config import Toml

    try:
        table: Any = Toml(FILE, search_parents=True).config
    except CycloptsError as error:
        raise UsageError(f"{FILE} cannot be read: {error}", "correct it") from None
    for key in TABLE:
        table = _table(table.get(key, {}), key)
    profiles: dict[str, dict[str, Any]] = {
        name: _table(value, name) for name, value in table.items()
    }
    return profiles


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{name} in {FILE} is no table", f"write {_header('NAME')} for a profile")
    return value


def _header(name: str) -> str:
    return f"[{'.'.join((*TABLE, name))}]"
