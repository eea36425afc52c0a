"""Options of ``DistributedDataParallel`` and ``replicate``. To add one: its class, and its
field.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.option import (
    Case,
    Inferred,
    Option,
    Replicated,
    Tape,
    WithOptions,
    options_of,
)


class DDP(WithOptions["DDPOption"], frozen=True, kw_only=True):
    """Options of the engines ``ddp`` and ``replicate``."""

    find_unused_parameters: bool = True
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    skip_all_reduce_unused_params: bool = False
    batched_grad_copy: bool = False
    lazy_bucket_allocation: bool = False
    buckets: Literal["default", "few_each", "one_each", "listed"] = "default"
    buffers: Literal["local", "forward_local", "broadcast", "forward_broadcast"] = "local"
    initial: Literal["equal", "first_rank", "unsynced"] = "equal"
    device_mesh: bool = False
    hook: Literal["allreduce", "average", "fp16", "fp16_wrapper", "local_sgd"] | None = None
    join: Literal["initial", "effective", "throwing", "off"] | None = None
    manual_finalization: bool = False
    ignored_modules: bool = False
    uncloned_outputs: bool = False
    no_sync: Literal["again", "left_by_error"] | None = None

    exact_hook: ClassVar = "allreduce"
    """The hook that averages gradients as they are."""

    @property
    def broadcasts_buffers(self) -> bool:
        """Whether every forward begins with the buffers of one rank."""
        return self.buffers in ("broadcast", "forward_broadcast")

    @property
    def averages_in_half(self) -> Dtype | None:
        """The half precision that gradients are cast to, divided and added up in."""
        return "float16" if self.hook in ("fp16", "fp16_wrapper") else None

    def buffers_from(self, ranks: int, *, joined: bool) -> int:
        """Return the rank of that many whose buffers these are; ``joined``: there was a join."""
        return ranks - 1 if joined or self.join not in (None, "off") else 0

    def arguments(self, *, buffers: bool = True) -> list[str]:
        """Return the arguments of the constructor, as a script has them; ``buffers``: there are
        some.
        """
        return [
            text
            for option, value in self.told()
            if buffers or (option.name, value) != ("buffers", "local")
            for text in option.arguments(value)
        ]

    def lines(self, engine: str, group: str, *, wrapper: bool) -> list[str]:
        """Return what is done with the ``engine`` once it is constructed, be it a ``wrapper``."""
        told = [pair for pair in self.told() if wrapper or not pair[0].of_wrapper]
        return [line for option, value in told for line in option.lines(value, engine, group)]

    def contexts(self, engine: str) -> list[str]:
        """Return the contexts that a case trains in; nobody leaves those of a script."""
        return [] if self.join is None else [f"{engine}.join({JOINED[self.join]})"]


class DDPOption(Option):
    """One of them."""

    of_wrapper: ClassVar[bool] = False
    """Whether ``replicate`` has nothing like it."""
    in_every_case: ClassVar[bool] = False
    """Whether it is drawn in cases without the extension, too."""

    def draw(self, tape: Tape, seen: Replicated) -> Any:
        """Return a value for a finished case."""
        return self.by_chance(tape)

    def features(self, value: Any, case: Case, found: Inferred) -> Iterator[str]:
        """Yield the features of a value off its default."""
        words = {True: self.name, False: f"no_{self.name}"}
        yield f"ddp:{words.get(value, f'{self.name}_{value}')}"

    def lines(self, value: Any, engine: str, group: str) -> list[str]:
        """Return what is done with ``engine`` once it is there, whose process group is
        ``group``.
        """
        return []


class DDPFlag(DDPOption):
    """An argument under its own name, off by default."""

    def __init_subclass__(cls) -> None:
        cls.texts = {True: f"{cls.name}=True"}
        cls.meanings = {f"ddp:{cls.name}": f"{cls.name}=True", **cls.meanings}


class FindUnusedParameters(DDPOption):
    """Whether DDP looks for parameters that a forward does not use."""

    name, place, rare = "find_unused_parameters", 0, (False, 60)
    texts = {True: "find_unused_parameters=True"}
    meanings = {"ddp:no_find_unused_parameters": "DDP does not look for unused parameters"}


class StaticGraph(DDPFlag):
    """``static_graph``: the reducer learns the order of gradients in the first iteration."""

    name, place, rare = "static_graph", 3, (True, 25)


class GradientAsBucketView(DDPFlag):
    """Gradients are views of the buckets."""

    name, place, rare = "gradient_as_bucket_view", 2, (True, 35)


class SkipAllReduceUnusedParams(DDPFlag):
    """Buckets whose parameters are unused on all ranks are not reduced."""

    name, place, rare = "skip_all_reduce_unused_params", 5, (True, 25)


class BatchedGradCopy(DDPFlag):
    """Gradients are copied into a bucket together."""

    name, place, rare = "batched_grad_copy", 6, (True, 30)


class LazyBucketAllocation(DDPFlag):
    """Buckets are allocated when they are first used."""

    name, place, rare = "lazy_bucket_allocation", 7, (True, 25)


class Buckets(DDPOption):
    """Torch's own size, a few parameters each, one each, or sizes one by one.

    In MiB: some 200 bytes, or 1. Torch's own tests have such fractions as well.
    """

    name, place = "buckets", 1
    weights = (("default", 6), ("one_each", 4), ("few_each", 3), ("listed", 3))
    texts = {
        "few_each": "bucket_cap_mb=2e-4",
        "one_each": "bucket_cap_mb=1e-6",
        "listed": "bucket_cap_mb_list=[1e-4, 2e-5, 3e-4]",
    }
    meanings = {
        "ddp:buckets_few_each": "buckets of a few parameters each",
        "ddp:buckets_one_each": "buckets of one parameter each",
        "ddp:buckets_listed": "bucket_cap_mb_list",
    }


class Buffers(DDPOption):
    """The first rank's or everyone's own, by ``broadcast_buffers`` or ``forward_sync_buffers``."""

    name, place, of_wrapper, in_every_case = "buffers", 12, True, True
    texts = {
        "local": "broadcast_buffers=False",
        "forward_local": "forward_sync_buffers=False",
        "broadcast": "broadcast_buffers=True",
        "forward_broadcast": "forward_sync_buffers=True",
    }
    meanings = {
        "ddp:buffers_forward_local": "forward_sync_buffers=False",
        "ddp:buffers_broadcast": "broadcast_buffers=True",
        "ddp:buffers_forward_broadcast": "forward_sync_buffers=True",
        "ddp:broadcasts": "DDP has buffers to broadcast",
    }

    @override
    def draw(self, tape: Tape, seen: Replicated) -> str:
        local = 18 if seen.updates_buffers else 180
        return tape.weighted(
            (("local", local), ("broadcast", 3), ("forward_broadcast", 3), ("forward_local", 3))
        )

    @override
    def features(self, value: str, case: Case, found: Inferred) -> Iterator[str]:
        yield from super().features(value, case, found)
        if case.ddp.broadcasts_buffers and found.updated:
            yield "ddp:broadcasts"


class Initial(DDPOption):
    """Whether ranks begin with equal values, only the first one has the right ones, or
    ``init_sync`` is off.
    """

    name, place = "initial", 8
    weights = (("equal", 8), ("first_rank", 3), ("unsynced", 2))
    texts = {"unsynced": "init_sync=False"}
    meanings = {
        "ddp:initial_first_rank": "only the first rank has the right values when DDP is "
        "constructed",
        "ddp:initial_used": "the same, and something uses them before the first forward",
        "ddp:initial_unsynced": "init_sync=False",
    }

    @override
    def features(self, value: str, case: Case, found: Inferred) -> Iterator[str]:
        yield from super().features(value, case, found)
        before = itertools.takewhile(lambda op: not op.call, case.schedule)
        if value == "first_rank" and not all(op.sets_mode for op in before):
            yield "ddp:initial_used"


class DeviceMesh(DDPOption):
    """DDP gets a mesh instead of the process group."""

    name, place, rare = "device_mesh", 9, (True, 40)
    texts = {True: "device_mesh=mesh"}
    meanings = {"ddp:device_mesh": "DDP is given a device mesh"}


_AVERAGE = (
    "def average_hook(group, bucket):",
    "    summed = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()",
    "    return summed.then(lambda summed: summed.value()[0] / dist.get_world_size(group))",
)


_HOOKS = {
    "allreduce": "{group}, allreduce_hook",
    "average": "{group}, average_hook",
    "fp16": "{group}, fp16_compress_hook",
    "fp16_wrapper": "{group}, fp16_compress_wrapper(allreduce_hook)",
    "local_sgd": "PostLocalSGDState({group}, {subgroup}, start_localSGD_iter=1), "
    "post_localSGD_hook",
}


class Hook(DDPOption):
    """One of torch's hooks, or one that divides after the sum.

    ``fp16_compress_hook`` "casts ``GradBucket`` tensor to half-precision floating-point format
    (``torch.float16``) and then divides it by the process group size", and is "equivalent to
    ``fp16_compress_wrapper(allreduce_hook)``". Scaled gradients come near to the largest float16.

    ``post_localSGD_hook`` averages in a subgroup, here of all ranks, once it has begun.
    """

    name, place = "hook", 4
    weights = (
        *((None, 5), ("allreduce", 2), ("average", 2), ("fp16", 4), ("fp16_wrapper", 2)),
        ("local_sgd", 2),
    )
    meanings = {
        "ddp:hook_allreduce": "torch's all-reduce as a communication hook",
        "ddp:hook_average": "a communication hook that divides after the sum",
        "ddp:hook_fp16": "gradients that fp16_compress_hook averages in float16",
        "ddp:hook_fp16_wrapper": "fp16_compress_wrapper around torch's all-reduce",
        "ddp:hook_local_sgd": "post_localSGD_hook, with a subgroup of all ranks",
    }

    @override
    def draw(self, tape: Tape, seen: Replicated) -> str | None:
        scaled = bool(seen.case.optimizer.grad_scaler)
        drawn: str | None = "fp16" if scaled and tape.chance(60) else super().draw(tape, seen)
        return drawn

    @override
    def lines(self, value: str | None, engine: str, group: str) -> list[str]:
        if value is None:
            return []
        defined = _AVERAGE if value == "average" else ()
        subgroup = "dist.group.WORLD" if group == "None" else group
        told = _HOOKS[value].format(group=group, subgroup=subgroup)
        return [*defined, f"{engine}.register_comm_hook({told})"]


JOINED = {
    "initial": "",
    "effective": "divide_by_initial_world_size=False",
    "throwing": "throw_on_early_termination=True",
    "off": "enable=False",
}


class Join(DDPOption):
    """Trains within ``ddp.join()``.

    It divides by the ranks there were at first or by those left, raises where a rank is done, or
    is off. Buffers are the last rank's then, "since rank 0 may already have been joined"
    (``_sync_buffers``).
    """

    name, place, of_wrapper = "join", 10, True
    weights = ((None, 4), ("initial", 3), ("effective", 3), ("throwing", 3), ("off", 3))
    meanings = {
        "ddp:join_initial": "training within join()",
        "ddp:join_effective": "training within join(divide_by_initial_world_size=False)",
        "ddp:join_throwing": "training within join(throw_on_early_termination=True)",
        "ddp:join_off": "training within join(enable=False)",
    }


class ManualFinalization(DDPOption):
    """``finalize_backward()`` after every synchronised backward."""

    name, place, of_wrapper, rare = "manual_finalization", 11, True, (True, 30)
    meanings = {"ddp:manual_finalization": "finalize_backward() after every synchronised backward"}

    @override
    def lines(self, value: bool, engine: str, group: str) -> list[str]:
        return [f"{engine}.require_manual_backward_finalization = True"] if value else []


class IgnoredModules(DDPOption):
    """``replicate`` is given the modules that the case ignores."""

    name, place, in_every_case = "ignored_modules", 13, True
    meanings = {"ddp:ignored_modules": "replicate() is told to ignore modules"}

    @override
    def draw(self, tape: Tape, seen: Replicated) -> bool:
        return seen.may_ignore and tape.chance(70)

    @override
    def features(self, value: bool, case: Case, found: Inferred) -> Iterator[str]:
        if any(path in found.modules for path in case.ignored):
            yield from super().features(value, case, found)


class UnclonedOutputs(DDPOption):
    """Outputs are handed on without a clone: "cloning the tensors can add significant memory and
    performance hit ... this can be set to False if you are not modifying the loss in place"
    (``_set_ddp_sink_clone``).
    """

    name, place, of_wrapper, rare = "uncloned_outputs", 14, True, (True, 15)
    meanings = {"ddp:uncloned_outputs": "outputs that DDP does not clone"}

    @override
    def lines(self, value: bool, engine: str, group: str) -> list[str]:
        return [f"{engine}._set_ddp_sink_clone(False)"] if value else []


class NoSync(DDPOption):
    """``no_sync()`` once more than the schedule asks for: entered and left within itself, or left
    by an exception. Then everything is as it was before.
    """

    name, place, of_wrapper, in_every_case = "no_sync", 15, True, True
    meanings = {
        "ddp:no_sync_again": "no_sync() entered and left within no_sync()",
        "ddp:no_sync_left_by_error": "no_sync() left by an exception",
    }

    @override
    def draw(self, tape: Tape, seen: Replicated) -> str | None:
        again = (("again", 4),) if seen.has_unsynced else ()
        drawn: str | None = tape.weighted(((None, 6), ("left_by_error", 1), *again))
        return drawn

    @override
    def lines(self, value: str | None, engine: str, group: str) -> list[str]:
        if value != "left_by_error":
            return []
        return [f"with contextlib.suppress(KeyError), {engine}.no_sync():", "    raise KeyError"]


DDP_OPTIONS = options_of(DDP, DDPOption)
"""In the order of their fields."""
