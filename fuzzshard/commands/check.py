"""``fuzzshard check``: a model of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fuzzshard.case.case import EngineName
from fuzzshard.commands.options import Device, Duration, Json, Preload, world_config
from fuzzshard.errors import EXIT_INTERRUPTED, UsageError


def check(
    build: str,
    *,
    inputs: str,
    loss: str = "",
    parallelize: str = "",
    optimizer: str = "",
    train_step: str = "",
    loss_weight: str = "",
    map_names: Annotated[Path | None, Parameter(name="--map", show_default=False)] = None,
    mesh: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ("dp_shard=2",),
    engine: Annotated[tuple[EngineName, ...], Parameter(negative=(), show_default=False)] = (),
    steps: int = 3,
    microbatches: int = 1,
    seed: int = 0,
    device: Device = "auto",
    ranks_per_device: int = 1,
    max_time: Duration = None,
    preload: Preload = (),
    as_json: Json = False,
) -> int:
    """Train a model of your own, parallelised, beside the plain one, and compare the two.

    Functions are named module:function or path/to/file.py:function. They run on ranks, which
    gloo or NCCL connects, and nowhere else. For each mesh a table says how far outputs, loss,
    gradients, parameters, buffers and the state dict are equal, and where they differ first.

    For example:
      fuzzshard check train.py:build --inputs train.py:batch
      fuzzshard check my.train:build --inputs my.train:batch --loss my.train:loss
        --parallelize my.train:apply_fsdp --mesh dp_replicate=2,dp_shard=2

    Exit codes: 0 all equal, 1 a difference, an error or a hang, 2 something given cannot be used,
    3 nothing can be judged, as where the plain model differs from itself, 4 the machine failed.

    Parameters
    ----------
    build
        build() gives the plain model, on the CPU or the meta device.
    inputs
        inputs(step, dp_rank, dp_size) gives a batch, the same whenever it is called: a tensor, a
        tuple of arguments or a dict of keyword arguments. Microbatches are further steps.
    loss
        loss(outputs, batch) gives a scalar; by default the mean of the squares of all outputs.
    parallelize
        parallelize(model, mesh) changes the model or returns another module. Without it,
        fully_shard wraps the repeated blocks and the root, and then DDP wraps the model.
    optimizer
        optimizer(parameters) gives the optimizer; by default AdamW with a learning rate of 1e-3.
    train_step
        train_step(model, optimizer, batches) is a whole training step on the microbatches of a
        rank. The plain model gets those of all data-parallel ranks.
    loss_weight
        loss_weight(batch) is the weight of a batch in the mean over all ranks: its tokens, say.
    map_names
        A JSON file of names of parameters that parallelize changes: {"new.name": "plain.name"}.
    mesh
        Axes and sizes, as dp_shard=2 or dp_replicate=2,dp_shard=2; repeat it for several. Ranks
        along tp, pp, cp, ep and sp get equal data.
    engine
        What wraps the model in place of parallelize; repeat it for several.
    steps
        How many optimizer steps are compared.
    microbatches
        Forwards and backwards in each step.
    seed
        What the values of the model and dropouts are drawn from.
    device
        auto is CUDA with NCCL where there is any, else the CPU with gloo.
    ranks_per_device
        How many ranks may share a CUDA device.
    max_time
        How long one training may take before its ranks count as hung; by default 10m.
    preload
        A Python file that every rank runs first; repeat it for several.
    as_json
        Print one JSON object for each training.
    """
    from fuzzshard.checking.check import check_subject, trainings
    from fuzzshard.checking.report import Report, TrainingReport
    from fuzzshard.subject.subject import MeshShape, Subject
    from fuzzshard.world import resolve_device
    from fuzzshard.world.world import SUBJECT_SECONDS

    if "" not in sys.path:  # a console script has no current folder there, python -m has
        sys.path.insert(0, "")
    subject = Subject(
        build=build,
        inputs=inputs,
        loss=loss,
        parallelize=parallelize,
        optimizer=optimizer,
        train_step=train_step,
        loss_weight=loss_weight,
        names=_names(map_names),
    )
    meshes = [MeshShape.parse(text) for text in mesh]
    runs = trainings(
        subject,
        meshes,
        tuple(dict.fromkeys(engine)),
        steps=steps,
        microbatches=microbatches,
        seed=seed,
    )
    kind, num_devices = resolve_device(device)
    config = world_config(
        kind,
        num_devices,
        preload,
        asked=max(m.size for m in meshes),
        default=1,
        ranks_per_device=ranks_per_device,
    )
    done: list[TrainingReport] = []
    try:
        for report in check_subject(subject, runs, config, max_time or SUBJECT_SECONDS):
            done.append(report)
            print(_as_json(report) if as_json else "\n".join(report.lines()), flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {len(done)} of {len(runs)} trainings")
        return EXIT_INTERRUPTED
    return Report(trainings=tuple(done)).exit_code


def _as_json(report: object) -> str:
    return msgspec.json.encode(report).decode()


def _names(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{path}, given with --map, cannot be read: {error}",
            'write {"new.name": "plain.name"} in JSON',
        ) from error
