"""The options of the engine ``pipelining``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import override

from fuzzshard.parts.option import Case, Option, Tape, WithOptions, options_of


class Pipelining(WithOptions["PipeliningOption"], frozen=True, kw_only=True):
    """Options of the engine ``pipelining``."""

    schedule_class: ScheduleName = "gpipe"
    scale_grads: bool = True
    replicates: bool = False
    max_outstanding_sends: Literal[1, 2] | None = None
    max_active_stages: Literal[1, 3] = 3
    unshard_lookahead: Literal["full", "auto", "one"] = "full"
    defer_reduce_grad_wait: bool = False
    defer_pp_recv: bool = False
    gives_microbatches: bool = False
    returned: Literal["outputs", "losses", "both", "nothing"] = "outputs"
    by_keyword: bool = False
    merge_dim: Literal[0, 1] = 0
    split_dim: Literal[0, -1] = 0

    @property
    def stages_per_rank(self) -> int:
        """How many stages a rank has."""
        return 1 if self.schedule_class in ("gpipe", "1f1b") else 2

    @property
    def fills_pipeline(self) -> bool:
        """Return whether the schedule needs as many microbatches as stages, or more."""
        return self.schedule_class in ("1f1b", "dual_pipe_v")

    def rank_of(self, stage: int, ranks: int) -> int:
        """Return the rank that has a stage; second stages may lie in the opposite order."""
        turned = self.schedule_class in ("zbv_zero_bubble", "dual_pipe_v") and stage >= ranks
        return 2 * ranks - 1 - stage if turned else stage % ranks


class PipeliningOption(Option):
    """One of them."""

    of_several: ClassVar[bool | None] = None
    """Whether schedules with several stages on a rank alone have it, or alone have it not."""
    of_step: ClassVar[tuple[str, ...]] = ()
    """The arguments of ``step()`` that it stands for."""

    def draw(self, tape: Tape, case: Case) -> Any:
        """Return a value for a case that has those before it, and not those after it."""
        return self.by_chance(tape) if self.fits(case) else self.default

    def fits(self, case: Case) -> bool:
        """Return whether the schedule has it."""
        return self.of_several in (None, case.pipelining.stages_per_rank > 1)


class ScheduleClass(PipeliningOption):
    """The class of the schedule, as the text that makes it says."""

    name, prefix, always_told = "schedule_class", "pipelining:", True
    texts = {
        "gpipe": "ScheduleGPipe",
        "1f1b": "Schedule1F1B",
        "interleaved_1f1b": "ScheduleInterleaved1F1B",
        "looped_bfs": "ScheduleLoopedBFS",
        "interleaved_zero_bubble": "ScheduleInterleavedZeroBubble",
        "zbv_zero_bubble": "ScheduleZBVZeroBubble",
        "dual_pipe_v": "ScheduleDualPipeV",
    }
    meanings = {
        "pipelining:gpipe": "all forwards, then all backwards",
        "pipelining:1f1b": "a backward after each forward, once the pipeline is full",
        "pipelining:interleaved_1f1b": "the same with two stages a rank",
        "pipelining:looped_bfs": "all microbatches through the first stage of a rank, then the "
        "next",
        "pipelining:interleaved_zero_bubble": "gradients of weights fill the bubbles",
        "pipelining:zbv_zero_bubble": "the same, with stages that lie as a V over the ranks",
        "pipelining:dual_pipe_v": "the same, with forwards and backwards that go together",
    }

    @override
    def draw(self, tape: Tape, case: Case) -> str:
        """Draw those with two stages a rank more often: few models have modules for them."""
        weights = (2, 2, 3, 3, 3, 3, 3)
        drawn: str = tape.weighted(tuple(zip(self.texts, weights, strict=True)))
        return drawn


if TYPE_CHECKING:
    ScheduleName = str
else:  # what msgspec decodes goes by the names
    ScheduleName = Literal[*ScheduleClass.texts]


class ScaleGrads(PipeliningOption):
    """By default the schedule divides, and the loss of a microbatch is a mean over its rows."""

    name, argument = "scale_grads", 1
    texts = {False: "scale_grads=False"}
    meanings = {"pipelining:sums": "gradients of microbatches are added up: scale_grads=False"}

    @override
    def draw(self, tape: Tape, case: Case) -> bool:
        """``zero_grad`` leaves what no optimizer has, which every iteration would divide again."""
        return not (case.optimizer.left_out or tape.chance(30))


class Replicates(PipeliningOption):
    """``DistributedDataParallel`` around each stage, in place of ``fully_shard`` within it."""

    name = "replicates"
    meanings = {"pipelining:ddp": "DistributedDataParallel is around every stage"}

    @override
    def draw(self, tape: Tape, case: Case) -> bool:
        return not any(g.precision or g.rounding() for g in case.wrap) and tape.chance(30)


class MaxOutstandingSends(PipeliningOption):
    """How many sends of a rank may be pending."""

    name, of_several = "max_outstanding_sends", True
    texts = {1: "max_outstanding_sends=1", 2: "max_outstanding_sends=2"}
    meanings = {"pipelining:few_sends": "a rank waits for sends: max_outstanding_sends"}
    weights = ((None, 60), (1, 25), (2, 15))


class MaxActiveStages(PipeliningOption):
    """How many stages of a rank may be unsharded between their microbatches."""

    name, of_several = "max_active_stages", True
    texts = {1: "max_active_stages=1"}
    meanings = {
        "pipelining:one_active_stage": "a rank reshards a stage before it runs another one: "
        "max_active_stages"
    }
    weights = ((3, 65), (1, 35))


class UnshardLookahead(PipeliningOption):
    """How many stages ahead a rank gathers."""

    name, of_several, prefix = "unshard_lookahead", True, "pipelining:lookahead_"
    texts = {
        "auto": 'unshard_lookahead="auto"',
        "one": "unshard_lookahead=(1,) * stages[0].group_size",
    }
    meanings = {
        "pipelining:lookahead_auto": 'unshard_lookahead="auto"',
        "pipelining:lookahead_one": "a stage is gathered right before it runs: unshard_lookahead",
    }
    weights = (("full", 60), ("one", 25), ("auto", 15))


class DeferReduceGradWait(PipeliningOption):
    """When a rank waits for the reduction of a stage."""

    name, of_several = "defer_reduce_grad_wait", True
    texts = {True: "defer_reduce_grad_wait=True"}
    meanings = {
        "pipelining:late_waits": "a rank waits for a reduction before it begins the next one: "
        "defer_reduce_grad_wait"
    }
    weights = ((False, 60), (True, 40))


class DeferRecv(PipeliningOption):
    """When a rank begins to receive."""

    name, of_several = "defer_pp_recv", True
    texts = {True: "defer_pp_recv=True"}
    meanings = {
        "pipelining:late_receives": "a rank receives right before it computes: defer_pp_recv"
    }
    weights = ((False, 70), (True, 30))


class GivesMicrobatches(PipeliningOption):
    """Whether a schedule gets its microbatches, and not all of them in one tensor to be split."""

    name, of_step = "gives_microbatches", ("arg_mbs", "target_mbs")
    meanings = {"pipelining:given_microbatches": "step(arg_mbs=..., target_mbs=...)"}
    weights = ((False, 60), (True, 40))


class Returned(PipeliningOption):
    """What a step returns, and the list that it is given for losses has then."""

    name, prefix = "returned", "pipelining:returns_"
    meanings = {
        "pipelining:returns_losses": "step(losses=losses, return_outputs=False)",
        "pipelining:returns_both": "step(losses=losses)",
        "pipelining:returns_nothing": "step(return_outputs=False)",
    }
    weights = (("outputs", 40), ("losses", 20), ("both", 20), ("nothing", 20))


class ByKeyword(PipeliningOption):
    """How the first stage gets its input. A keyword reaches all stages of a rank."""

    name, of_several, rare = "by_keyword", False, (True, 50)
    meanings = {"pipelining:by_keyword": "the first stage gets its input by a keyword"}


class MergeDim(PipeliningOption):
    """The dim along which a schedule puts the outputs of microbatches together."""

    name, rare = "merge_dim", (1, 40)
    texts = {1: "output_merge_spec=TensorChunkSpec(1)"}
    meanings = {
        "pipelining:merges_dim_1": "outputs come along their second dim: output_merge_spec"
    }

    @override
    def fits(self, case: Case) -> bool:
        return case.pipelining.returned in ("outputs", "both")


class SplitDim(PipeliningOption):
    """The dim along which a schedule splits the input of the first stage; the last one is all that
    there is for sure.
    """

    name, rare = "split_dim", (-1, 40)
    texts = {-1: "args_chunk_spec=(TensorChunkSpec(-1),)"}
    meanings = {
        "pipelining:splits_last_dim": "inputs are split along their last dim: args_chunk_spec"
    }

    @override
    def fits(self, case: Case) -> bool:
        spec = case.pipelining  # looped_bfs has no args_chunk_spec
        return not (
            spec.by_keyword or spec.gives_microbatches or spec.schedule_class == "looped_bfs"
        )


PIPELINING_OPTIONS = options_of(Pipelining, PipeliningOption)
"""In the order of their fields."""
