"""A model of one's own in Python: what :func:`fuzzshard.testing.check` takes.

Functions are given themselves or by name. They run on ranks, which are other processes, so each
must be found at the top level of a module. With pytest, a test that is marked returns a subject::

    @pytest.mark.fuzzshard(meshes=["dp_shard=2"], require="bitwise")
    def test_my_model():
        return Subject(build=build, inputs=batch)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fuzzshard.errors import UsageError
from fuzzshard.subject.subject import Subject as NamedSubject

Function = Callable[..., Any] | str


class Subject:
    """A model and how it is trained: what ``fuzzshard check`` is given.

    Raises :class:`UsageError` for a function that other processes cannot import.
    """

    def __init__(
        self,
        *,
        build: Function,
        inputs: Function,
        loss: Function | None = None,
        parallelize: Function | None = None,
        optimizer: Function | None = None,
        train_step: Function | None = None,
        loss_weight: Function | None = None,
        smaller: Function | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """``names`` are the plain names of parameters that ``parallelize`` renames."""
        functions = {
            "build": build,
            "inputs": inputs,
            "loss": loss,
            "parallelize": parallelize,
            "optimizer": optimizer,
            "train_step": train_step,
            "loss_weight": loss_weight,
            "smaller": smaller,
        }
        given = {field: name_of(f) for field, f in functions.items() if f is not None}
        self.named = NamedSubject(names=dict(names or {}), **given)


def name_of(function: Function) -> str:
    """Return the name by which a rank can import ``function``; raises :class:`UsageError`."""
    if isinstance(function, str):
        return function
    module, name = function.__module__, function.__qualname__
    file = inspect.getsourcefile(function)
    if "<" in name or file is None:
        raise UsageError(
            f"ranks, which are other processes, cannot import {name}",
            "define it at the top level of a module",
        )
    return f"{file if module == '__main__' else module}:{name}"
