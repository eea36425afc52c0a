"""What the tables share: engines, optimizers, wrapping plans and the loops of upstream's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from fuzzshard.case.case import (
    Case,
    Checkpoint,
    EngineName,
    Inputs,
    Mesh,
    Optimizer,
    TensorSpec,
    WrapGroup,
)
from fuzzshard.case.graph import Block
from fuzzshard.parts.ops import Backward, Forward, Op, Step, ZeroGrad
from fuzzshard.shrink.repair import repaired

TRAINING = "_composable/fsdp/test_fully_shard_training.py"
POSITIONS = (
    "positions are a second input of random ids, not 0, 1, 2, ...; attention is written "
    "out, not SDPA"
)
SHORT_DELAYS = "delays last 2 ms, not 25 to 100; on a CPU the host sleeps"
UNEVEN = (
    "with raf=2 a parameter of 5 rows is registered with wrong rows after forward, which is a "
    "finding of its own (corpus/findings/README.md), so that only losses are compared, as "
    "upstream does"
)

FULLY_SHARD: tuple[EngineName, ...] = ("fully_shard",)
WITH_REPLICATE: tuple[EngineName, ...] = ("replicate", "fully_shard")
"""Upstream compares ``fully_shard`` with composable DDP; here both are compared with the plain
reference.
"""
DDP_AND_FSDP1: tuple[EngineName, ...] = ("ddp", "fsdp1")
FSDP1_ONLY: tuple[EngineName, ...] = ("fsdp1",)

ADAM = Optimizer(kind="adam", lr=1e-2)
ADAMW = Optimizer(kind="adamw", lr=1e-2, weight_decay=1e-2)
RESHARDS: tuple[bool | int, ...] = (True, False, 2)
BOTH = (False, True)
DELAY = 2.0
"""Milliseconds. Upstream waits for 25 to 100 ms of GPU time; on a CPU the host sleeps at the same
sites.
"""


SEED = 2
"""Of names, so upstream's 42 has no meaning here; with this one no ReLU of the small models is
dead.
"""


def make(
    model: Block,
    schedule: Iterable[Op],
    inputs: Inputs,
    mesh: int | Mesh,
    wrap: tuple[WrapGroup, ...],
    **options: Any,
) -> Case:
    """A case with upstream's seed and its loss, the sum of the output; upstream does not mind that
    parameters are not sharded when they change.
    """
    case = Case(
        seed=SEED,
        model=model,
        schedule=tuple(schedule),
        inputs=inputs,
        mesh=Mesh(shard=mesh) if isinstance(mesh, int) else mesh,
        wrap=wrap,
        loss="sum",
        **options,
    )
    return repaired(case) or case


def floats(batch: int, *sizes: int, requires_grad: bool = False, same: bool = False) -> Inputs:
    """One float input of (batch, size) for each of ``sizes``."""
    specs = tuple(TensorSpec(size=size, requires_grad=requires_grad) for size in sizes)
    return Inputs(batch=batch, tensors=specs, same_on_ranks=same)


def each(
    *modules: str, raf: bool | int | None = None, root: bool | int | None = None, **options: Any
) -> tuple[WrapGroup, ...]:
    """A group for each module and for the root, which reshards after forward as ``root`` says."""
    return (*only(*modules, raf=raf, **options), *only("", raf=root, **options))


def only(*modules: str, raf: bool | int | None = None, **options: Any) -> tuple[WrapGroup, ...]:
    """A group for each module."""
    return tuple(WrapGroup(modules=(m,), reshard_after_forward=raf, **options) for m in modules)


def checkpointed(
    modules: Iterable[str],
    enabled: bool = True,
    implementation: Literal["composable", "wrapper", "utils"] = "composable",
) -> tuple[Checkpoint, ...]:
    """Activation checkpointing of each module, if enabled."""
    return tuple(Checkpoint(module=m, implementation=implementation) for m in modules if enabled)


def every_other(iteration: int) -> bool:
    """``set_to_none`` of most tests: True in even iterations, so that gradients alternate zero and
    None.
    """
    return iteration % 2 == 0


def always(iteration: int) -> bool:
    """``set_to_none`` as it is by default."""
    return True


def train(
    iterations: int,
    *,
    fresh: bool,
    zero: Literal["start", "end"] = "start",
    to_none: Callable[[int], bool] = every_other,
) -> tuple[Op, ...]:
    """Forward, backward and step in each iteration, ``zero_grad`` before or after; inputs fresh or
    reused.
    """
    ops: list[Op] = []
    for i in range(iterations):
        clear = ZeroGrad(set_to_none=to_none(i))
        body = (Forward(batch=i if fresh else 0), Backward(), Step())
        ops += (clear, *body) if zero == "start" else (*body, clear)
    return tuple(ops)


def losses_if_uneven(raf: bool | int | None) -> Literal["everything", "losses"]:
    """What to compare where :data:`UNEVEN` holds."""
    return "losses" if raf is not None and not isinstance(raf, bool) else "everything"
