"""Checking a model of your own in Python.

::

    report = check(Subject(build=build, inputs=batch, parallelize=apply_fsdp), ["dp_shard=2"])
    report.require("bitwise")

Functions are given themselves or by name. They run on ranks, which are other processes, so each
must be found at the top level of a module. With pytest, a test that is marked returns a subject::

    @pytest.mark.fuzzshard(meshes=["dp_shard=2"], require="bitwise")
    def test_my_model():
        return Subject(build=build, inputs=batch)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuzzshard.checking.check import DEFAULT_MESHES, check_subject, trainings
from fuzzshard.checking.report import Report as Report
from fuzzshard.commands.options import Device, world_config
from fuzzshard.errors import UsageError
from fuzzshard.subject.subject import MeshShape
from fuzzshard.subject.subject import Subject as NamedSubject
from fuzzshard.world import resolve_device
from fuzzshard.world.world import SUBJECT_SECONDS

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
        }
        given = {field: name_of(f) for field, f in functions.items() if f is not None}
        self.named = NamedSubject(names=dict(names or {}), **given)


def check(
    subject: Subject,
    meshes: Sequence[str] = tuple(map(str, DEFAULT_MESHES)),
    *,
    engines: Sequence[str] = (),
    steps: int = 3,
    microbatches: int = 1,
    seed: int = 0,
    device: Device = "auto",
    ranks_per_device: int = 1,
    max_seconds: float = SUBJECT_SECONDS,
) -> Report:
    """Train a subject in each mesh, plain and parallelised, and compare.

    ``meshes`` are written as ``dp_replicate=2,dp_shard=2``, ``engines`` wrap the model where the
    subject has no ``parallelize``, one training may take ``max_seconds``. Raises
    :class:`UsageError` for what cannot be used and :class:`InfraError` where ranks fail.
    """
    shapes = [MeshShape.parse(mesh) for mesh in meshes]
    runs = trainings(
        subject.named, shapes, engines, steps=steps, microbatches=microbatches, seed=seed
    )
    kind, num_devices = resolve_device(device)
    largest = max((shape.size for shape in shapes), default=1)
    config = world_config(
        kind, num_devices, (), asked=largest, default=1, ranks_per_device=ranks_per_device
    )
    return Report(trainings=tuple(check_subject(subject.named, runs, config, max_seconds)))


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
