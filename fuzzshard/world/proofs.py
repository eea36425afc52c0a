"""Proves the instruments of this process on the torch at hand, before anybody believes them.

Every rank of a world runs a few tiny cases together. What an instrument must read there follows
from public facts: what a model has accumulated in two backwards without synchronisation is their
sum, after a synchronised one nothing waits, an unsharded parameter takes the memory of its
elements. Where the tensors that users see are right and a reading is not, the instrument is
switched off on all ranks. Where those tensors are wrong too, torch is, and nothing is said of the
instrument. Streams are proved by what is ordered and what is not, without a case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from fuzzshard.case.case import Case, EngineName, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.case.options import Precision
from fuzzshard.engines.fully_shard.state import GroupState
from fuzzshard.engines.mesh import prepare_groups, rank_mesh
from fuzzshard.instruments import (
    FLAT_PARAMETERS,
    GROUP_STATES,
    INSTRUMENTS,
    STREAMS,
    UNSHARDED_MEMORY,
    Instrument,
    InstrumentError,
    switch_off,
    works,
)
from fuzzshard.instruments.streams import proof as streams
from fuzzshard.parts.engines import BY_GROUPS, ENGINES, spec_of
from fuzzshard.parts.leaves import affine
from fuzzshard.parts.losses import SIMPLEST
from fuzzshard.parts.op import Below, Op, Switch
from fuzzshard.parts.ops import gathering, iteration, setting, training
from fuzzshard.world.experiment import EngineFailure, Experiment

Reading = Callable[[GroupState], object]
"""What an instrument reads of one group after the last op of a case."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """A case that no torch fails, and readings that say what is there.

    The oracles hold what instruments read against what they predict. A reading that says "nothing
    is left" is right of an instrument that is blind, too: ``present`` must be true of every group
    of the case.
    """

    case: Case
    present: tuple[tuple[Instrument, str, Reading], ...] = ()


def prove_instruments(device: torch.device) -> dict[str, str]:
    """Switch off what reads wrong, on all ranks of the world; what it read, by the name of the
    instrument.

    A collective call of all ranks.
    """
    found: dict[str, str] = {}
    for proof in proofs(dist.get_world_size()):
        found |= _misread(proof, device)
    if reading := streams.misread(device):
        found[STREAMS.name] = reading
    mine = torch.tensor([i.name in found for i in INSTRUMENTS], dtype=torch.int32, device=device)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    for instrument, off in zip(INSTRUMENTS, mine.tolist(), strict=True):
        if off:
            found.setdefault(instrument.name, "reads wrong on another rank")
    switch_off(found)
    return found


def proofs(size: int) -> Iterator[Proof]:
    """Yield the proofs for a world of ``size`` ranks."""
    sharded = Mesh(shard=size)
    once = iteration()
    accumulate = (
        setting(Switch("requires_gradient_sync", value=False)),
        *(*once, *iteration(1)),
        setting(Switch("requires_gradient_sync", value=True)),
        *training(2, zeroed="after"),
    )
    yield Proof(_case(sharded, accumulate))
    for spec in ENGINES.values():
        if FLAT_PARAMETERS.of(spec):
            yield Proof(_case(sharded, once, engine=spec.name))
    if size == 1:
        return
    half = Precision(param="bfloat16", reduce="float32")
    yield Proof(_case(sharded, accumulate, policy=half))
    yield Proof(
        _case(sharded, (*once, gathering(Below()))),
        present=((UNSHARDED_MEMORY, "unsharded parameters", lambda s: all(s.unsharded.values())),),
    )
    yield Proof(
        _case(sharded, (*once, gathering(Below(), waits=False))),
        present=(
            (GROUP_STATES, "an all-gather that nothing has waited for", lambda s: s.gathers),
        ),
    )
    yield Proof(
        _case(sharded, (setting(Switch("is_last_backward", value=False)), *once)),
        present=((GROUP_STATES, "a reduction that nothing has waited for", lambda s: s.reduces),),
    )
    hybrid = Mesh(replicate=size, shard=1)
    yield Proof(
        _case(hybrid, (setting(Switch("requires_all_reduce", value=False)), *once)),
        present=((GROUP_STATES, "a sum that waits for its all-reduce", lambda s: s.partial),),
    )


def _case(
    mesh: Mesh,
    schedule: tuple[Op, ...],
    *,
    engine: EngineName = BY_GROUPS.name,
    policy: Precision | None = None,
) -> Case:
    """Two linear layers, each in a group, of which one is called twice, on inputs with gradients;
    and nothing is rounded.
    """
    layer = affine(2 * mesh.size)
    return Case(
        seed=0,
        model=Block(
            children=(Child(name="up", module=layer), Child(name="down", module=layer)),
            nodes=(
                Call(name="h", module="up", args=("x",)),
                Call(name="y", module="down", args=("h",)),
                Call(name="z", module="down", args=("y",)),
            ),
            outputs=("z",),
        ),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=2),)),
        mesh=mesh,
        wrap=tuple(WrapGroup(modules=(m,), precision=policy) for m in ("up", "down", "")),
        schedule=schedule,
        values="dyadic",
        loss=SIMPLEST,
        engines=(engine,),
    )


def _misread(proof: Proof, device: torch.device) -> dict[str, str]:
    """Return what instruments read wrong in one proof, which are off from then on."""
    case, found = proof.case, dict[str, str]()
    (engine,) = case.engines
    while True:
        prepare_groups(case)
        experiment = Experiment(case, rank_mesh(case, device), lambda name: None)
        try:
            findings = experiment.run().findings
            break
        except InstrumentError as error:
            found[error.name] = error.reading
            switch_off(found)
        except EngineFailure as failure:
            if FLAT_PARAMETERS.of(spec_of(engine)):
                found[FLAT_PARAMETERS.name] = f"raised {failure.__cause__!r}"
            return found
    made = [(finding, [i for i in INSTRUMENTS if i.makes(finding)]) for finding in findings]
    if any(not instruments for _, instruments in made):
        if FLAT_PARAMETERS.of(spec_of(engine)):  # all of it is read by private names
            first = next(finding for finding, instruments in made if not instruments)
            found[FLAT_PARAMETERS.name] = f"read {first.observed}, not {first.expected}"
        return found
    for finding, instruments in made:
        found.setdefault(instruments[0].name, f"read {finding.observed}, not {finding.expected}")
    if (
        engine in experiment.traces
        and (leftovers := experiment.traces[engine].leftovers) is not None
    ):
        for instrument, what, reading in proof.present:
            if works(instrument) and not (
                leftovers.groups and all(map(reading, leftovers.groups.values()))
            ):
                found.setdefault(instrument.name, f"does not see {what}")
    switch_off(found)
    return found
