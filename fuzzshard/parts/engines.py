"""The engines, without torch. To add one: its class, its place in the list, and its folder in
``fuzzshard/engines``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.engine import EngineSpec as EngineSpec
from fuzzshard.parts.engine import WrapsModels
from fuzzshard.parts.leaves import kinds_for
from fuzzshard.parts.op import Choice, Reasons
from fuzzshard.parts.ops import HOOKED_CHOICES, NEW_CHOICES, OPS
from fuzzshard.parts.option import meanings_of
from fuzzshard.parts.options.context_parallel import CONTEXT_PARALLEL_OPTIONS
from fuzzshard.parts.options.ddp import DDP_OPTIONS
from fuzzshard.parts.options.fsdp1 import FSDP1_OPTIONS
from fuzzshard.parts.options.optimizer import choosing
from fuzzshard.parts.options.pipelining import PIPELINING_OPTIONS
from fuzzshard.parts.options.precision import Precision
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS
from fuzzshard.parts.part import off_default

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.facts import Facts


class Reference(EngineSpec):
    """Judges the others, and is accused where they agree with each other against it."""

    name = "reference"
    title = "reference"
    tag = "reference"


def option_features(case: Case, found: Facts, *, by_replicate: bool) -> Iterator[str]:
    """Yield the features of all options."""
    off = {*off_default(case.ddp)}
    for option, value in case.ddp.told():
        if option.name in off:
            yield from option.features(value, case, found, by_replicate=by_replicate)


class DistributedDataParallel(EngineSpec):
    """Replicates the model, whatever its wrap groups are."""

    name = "ddp"
    title = "`DistributedDataParallel`"
    tag = "DDP"
    meaning = "DistributedDataParallel runs"
    options = "ddp"
    meanings = meanings_of(DDP_OPTIONS)
    wrapper = "DistributedDataParallel"
    differs_in = ("buffers",)
    differentiates_twice = True
    wraps_models: ClassVar[WrapsModels] = "always"

    @override
    def moves_inputs(self, target: str, wrapped: frozenset[str]) -> bool:
        return not target

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        return option_features(case, found, by_replicate=False)

    @override
    def misfits(self, case: Case, found: Facts) -> Reasons:
        others = set(case.engines) - {DistributedDataParallel.name}
        if case.ddp.does("broadcasts_buffers") and others and found.batch_norms:
            yield (
                "DDP broadcasts buffers, which the other engines do not, and there is one "
                "reference",
                'run the engine ddp alone, or set ddp.buffers to "local"',
            )


class Replicate(DistributedDataParallel):
    """DDP without a wrapper, and with its options."""

    name = "replicate"
    title = "`replicate`"
    tag = "replicate"
    meaning = "composable DDP runs"
    wrapper = ""
    wraps_models: ClassVar[WrapsModels] = "if asked"
    choice = Choice("replicate", 23, place=2)
    ignores_modules = True
    outlives_run = "some parameters of some cases do, on torch 2.13 as it is; why is not known"

    @property
    @override
    def implementation(self) -> str:
        """torch/distributed/_composable/replicate.py wraps DDP."""
        return DistributedDataParallel.name

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        return option_features(case, found, by_replicate=True)


class FullyShard(EngineSpec):
    """Every wrap group is a call of it."""

    name = "fully_shard"
    title = "`fully_shard`"
    tag = "FSDP2"
    nicknames = ("fsdp", "hsdp")
    meaning = "fully_shard runs"
    applies_groups = True
    differs_in = ("input",)
    wraps_models: ClassVar[WrapsModels] = "always"
    wraps_blocks = True

    @override
    def moves_inputs(self, target: str, wrapped: frozenset[str]) -> bool:
        return target in wrapped

    @override
    def needs_cuda(self, case: Case) -> str | None:
        return next(filter(None, (group.needs_cuda() for group in case.wrap)), None)


class FullyShardedDataParallel(EngineSpec):
    """Every wrapped module is a unit with one flat parameter, and so is the root."""

    name = "fsdp1"
    title = "`FullyShardedDataParallel`"
    tag = "FSDP1"
    meaning = "FSDP1 runs"
    options = "fsdp1"
    meanings = meanings_of(FSDP1_OPTIONS)
    choice = Choice(
        "fsdp1",
        23,
        place=1,
        # what it has nothing for, or has not documented: a case with it would run without it
        excludes=(
            *("list_group", "tensor", "meta", "compile", "other_dtypes", "method"),
            *NEW_CHOICES,
            *("non_root_forward", "partial_sync", "backward_order"),
            *(*choosing("scales"), *HOOKED_CHOICES),
        ),
    )
    wrapper = "FullyShardedDataParallel"
    keeps_order = True
    has_units = True
    differs_in = ("reduced", "local")
    wraps_models = "if asked"
    wraps_blocks = True
    outlives_run = (
        "two modules of six of the smallest model with two units do, on torch 2.13 as it is "
        "(measured without fuzzshard); why is not known"
    )

    @override
    def has_flat_parameters(self, case: Case) -> bool:
        return not case.fsdp1.does("has_originals")

    @override
    def policy(self, case: Case) -> Precision | None:
        return case.fsdp1.policy

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        for option, value in case.fsdp1.told():
            yield from option.features(value, case)

    @override
    def needs_cuda(self, case: Case) -> str | None:
        return case.fsdp1.needs_cuda()

    @override
    def misfits(self, case: Case, found: Facts) -> Reasons:
        options, runs = case.fsdp1, self.name in case.engines
        policy = options.policy
        if policy is not None and policy.does("keeps_vectors"):
            yield ("FSDP1 has no param_dtype_override_fn", "remove keep from its precision")
        if runs and policy is not None and any(group.policy is not None for group in case.wrap):
            yield (
                "both FSDP1 and wrap groups have mixed precision, and there is one reference",
                "keep one of the two",
            )
        if runs and options.does("hybrid") and case.mesh.replicate is None:
            yield ("a hybrid strategy of FSDP1 needs a replicate axis", "set mesh.replicate")


class ZeroRedundancy(DistributedDataParallel):
    """DDP with its options, and an optimizer of which every rank has a part."""

    name = "zero_redundancy"
    wraps_models: ClassVar[WrapsModels] = "no"
    title = "`ZeroRedundancyOptimizer`"
    tag = "ZeRO"
    meaning = "DDP runs with ZeroRedundancyOptimizer"
    choice = Choice(
        "zero_redundancy",
        8,
        place=3,
        # what DDP has nothing for, or parameters of several types: it would not run
        excludes=(
            *("tensor", "other_dtypes", "partial_sync", "non_root_forward"),
            *NEW_CHOICES,
            *(o.extension.name for o in GROUP_OPTIONS if o.is_policy and o.extension),
        ),
        brings=tuple(c.name for op in OPS if op.of_optimizer for c in op.choices),
    )
    has_all_states = False

    @property
    @override
    def implementation(self) -> str:
        """It trains with DDP, and shards the optimizer alone."""
        return DistributedDataParallel.name


_OF_STAGES = tuple(c.name for op in OPS for c in op.choices if c.of_stages)


class PipelineParallel(EngineSpec):
    """Ranks along the pipeline axis have stages of the model, under ``fully_shard`` or DDP."""

    name = "pipelining"
    title = "`torch.distributed.pipelining`"
    tag = "pipelining"
    nicknames = ("pp", "pipeline")
    meaning = "a pipeline schedule runs, with fully_shard or DDP in its stages"
    options = "pipelining"
    meanings = meanings_of(PIPELINING_OPTIONS)
    choice = Choice(
        "pipelining",
        11,
        place=100,
        brings=_OF_STAGES,
        # what a chain of stages has no place for, or runs at once in place of op by op
        excludes=(
            *("several_inputs", "input_grad", "several_outputs", "list_group", "root_not_wrapped"),
            *("structured_passing", "structured_returns", "method", "alternatives"),
            *("alias", "tie", "ignored"),
            *("meta", "compile", "rank_batches", "finalize", "toggle"),
            *("microbatches", "two_forwards", "partial_loss", "backward_order"),
            *("no_sync", "partial_sync", "no_all_reduce", "not_last_backward", "no_reshard"),
            *("no_zero_grad", "losses_only", "any_moment"),
            "non_root_forward",
            *(c.name for op in OPS for c in op.choices if c.name not in _OF_STAGES),
            *choosing("scales"),
        ),
    )
    in_stages = True

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        for option, value in case.pipelining.told():
            yield from option.named(value)

    @override
    def misfits(self, case: Case, found: Facts) -> Reasons:
        if self.name in case.engines and case.mesh.pipeline is None:
            yield (
                "a pipeline schedule runs along the pipeline axis of a mesh",
                "set mesh.pipeline, or leave out this engine",
            )


class ExpertParallel(FullyShard):
    """The shard axis has the experts, and ``fully_shard`` shards them over the other axis alone.

    So torchtitan trains mixtures (torchtitan/models/llama4/parallelize.py).
    """

    name = "expert_parallel"
    title = "expert parallelism with `fully_shard`"
    tag = "expert parallel"
    nicknames = ("ep", "moe")
    meaning = "experts are sharded over an axis of the mesh, and rows go to them"
    choice = Choice(
        "expert_parallel",
        8,
        place=101,
        # what there is no mesh of one axis for, or what experts are not told
        excludes=(
            *("tensor", "meta", "compile", "no_all_reduce"),
            *("alias", "tie", "reshard_int"),
            # several meshes have gradients and parameters
            *(*choosing("scales"), *choosing("steps_lists")),
        ),
        needs=tuple(kind.name for kind in kinds_for("experts")),
    )
    shards_experts = True
    wraps_models = "no"
    wraps_blocks = False

    @property
    @override
    def implementation(self) -> str:
        """It calls ``fully_shard`` for every group."""
        return FullyShard.name


class SimpleFSDP(EngineSpec):
    """Shards each parameter by itself, whatever its wrap groups are (arXiv 2411.00284).

    All-gathers and reduce-scatters are nodes of the autograd graph, which torch.compile traces.
    """

    name = "simple_fsdp"
    title = "SimpleFSDP"
    tag = "SimpleFSDP"
    meaning = "parameters are DTensors that modules redistribute when they read them"
    choice = Choice(
        "simple_fsdp",
        10,
        place=102,
        # what only groups of fully_shard have
        excludes=(*("no_sync", "partial_sync", "no_all_reduce", "divide_factor"),),
    )
    differentiates_twice = True

    @property
    @override
    def has_dtensors(self) -> bool:
        return True


class ContextParallel(FullyShard):
    """Ranks of the shard axis exchange rows for positions before attention, and back behind it.

    In between torch's own ring attention runs, as torchtitan applies it. Results of parts of the
    keys are put together by differences of them, which round also where a softmax has one
    element that counts and is exact.
    """

    name = "context_parallel"
    title = "context parallelism with `fully_shard`"
    tag = "context parallel"
    nicknames = ("cp", "ring attention")
    meaning = "attention runs over ranks that each have a part of the positions"
    options = "context_parallel"
    meanings = meanings_of(CONTEXT_PARALLEL_OPTIONS)
    choice = Choice(
        "context_parallel",
        8,
        place=103,
        needs=(*(kind.name for kind in kinds_for("attention")), "sequence"),
        excludes=("tensor", "compile"),
    )
    shards_positions = True
    rounds_otherwise = True
    wraps_models = "no"
    wraps_blocks = False

    @property
    @override
    def implementation(self) -> str:
        """It calls ``fully_shard`` for every group."""
        return FullyShard.name

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        for option, value in case.context_parallel.told():
            yield from option.named(value)


ENGINES: dict[str, EngineSpec] = {
    spec.name: spec
    for spec in (
        *(DistributedDataParallel(), Replicate(), FullyShard(), FullyShardedDataParallel()),
        ZeroRedundancy(),
        PipelineParallel(),
        ExpertParallel(),
        SimpleFSDP(),
        ContextParallel(),
    )
}
"""Those that are judged, in the order in which they train."""

BY_GROUPS = next(spec for spec in ENGINES.values() if spec.applies_groups)
"""The one that wrap groups are written for."""

REFERENCE = Reference()
"""What they are judged by."""

OPTIONS = tuple(dict.fromkeys(spec.options for spec in reversed(ENGINES.values()) if spec.options))
"""The fields of a case that have options of engines, in the order in which they are drawn."""


def spec_of(engine: str) -> EngineSpec:
    """Return what the engine of that name says of itself; the reference is what else there is."""
    return ENGINES.get(engine, REFERENCE)


def meant_by(text: str) -> str:
    """Return the name of the engine that people call ``text``, or almost; empty for none."""
    names = {
        name.strip("`").lower(): spec.name
        for spec in ENGINES.values()
        for name in (spec.name, spec.title, spec.tag, *spec.nicknames)
    }
    close = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.75)
    return names[close[0]] if close else ""


def specs(engines: Iterable[str]) -> tuple[EngineSpec, ...]:
    """Return what ``engines`` say of themselves."""
    return tuple(map(spec_of, engines))
