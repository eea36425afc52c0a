"""Swarm testing: every case first draws which choices it may make at all.

A generator that may always do everything makes every case a bit of everything; features that hide
one another then never meet alone. Leaving out about half of the choices per case makes small cases
with few features and large conjunctions both common (Groce et al., Swarm Testing, ISSTA 2012).

What only some programs do (mixed precision, tensor parallelism, offloading, checkpoints on disk,
...) is an
*extension*: a third of the cases have none, the others each with a probability of its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from fuzzshard.case.case import EngineName
from fuzzshard.parts.engines import ENGINES, specs
from fuzzshard.parts.leaf import Role
from fuzzshard.parts.leaves import KINDS, kinds_for
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Choice
from fuzzshard.parts.ops import CAST_CHOICES, OPS
from fuzzshard.parts.options.optimizer import OPTIMIZER_OPTIONS
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS
from fuzzshard.strategies.tape import Tape

(IMAGES,) = (kind.name for kind in kinds_for("images"))
"""The choice of inputs that are images, and of the leaf that reads them."""
(MIXTURE,) = (kind.name for kind in kinds_for("experts"))
"""The choice of mixtures of experts."""
(FUSED,) = (kind.name for kind in kinds_for("attention"))
"""The choice of attention by one kernel."""
_OF_GROUPS = [option.extension for option in GROUP_OPTIONS if option.extension]
PRECISION = "precision"
"""The choice of mixed precision."""

CHOICES: tuple[str, ...] = (
    *(kind.name for kind in KINDS if kind.in_swarms),
    # inputs and widths
    "sequence",
    "ids",
    "several_inputs",
    "input_grad",
    "odd_widths",
    "width_one",
    # edges
    "add",
    "mul",
    "concat",
    "detach",
    "relu",
    "tanh",
    "branch",
    "nested",
    "second_nested",
    "several_outputs",
    "partial_loss",
    "unused_module",
    "unused_value",
    # reuse
    "repeat",
    "alias",
    "no_grad_call",
    "tie",
    "two_forwards",
    # wrapping
    "many_groups",
    "list_group",
    "root_not_wrapped",
    *(choice for option in GROUP_OPTIONS for choice in option.choices),
    "checkpoint",
    "hsdp",
    # freezing
    "freeze_parameter",
    "freeze_module",
    "freeze_after_wrap",
    "toggle",
    # schedule
    "several_steps",
    "microbatches",
    "no_sync",
    "partial_sync",
    "no_all_reduce",
    "not_last_backward",
    "no_reshard",
    "zero_to_zero",
    "no_zero_grad",
    "no_grad_forward",
    "eval_forward",
    "non_root_forward",
    "backward_order",
    # optimizer
    *(choice for o in sorted(OPTIMIZER_OPTIONS, key=lambda o: o.place) for choice in o.choices),
)

_OF_OPS = sorted((choice for op in OPS for choice in op.choices), key=lambda choice: choice.place)
_OF_ENGINES = sorted(
    (spec.choice for spec in ENGINES.values() if spec.choice), key=lambda choice: choice.place
)
_CUTTING = [spec.choice.name for spec in ENGINES.values() if spec.choice and spec.in_stages]
_OF_OPTIMIZERS = sorted(
    (option.extension for option in OPTIMIZER_OPTIONS if option.extension),
    key=lambda choice: choice.place,
)
_OF_LOSSES = [loss.extension for loss in LOSSES.values() if loss.extension]
_ORDERED = sorted((*_OF_GROUPS, Choice("other_dtypes", 10, place=1)), key=lambda c: c.place)
_LATER = 100
"""The place of the first choice that was added later, so that swarms stay as they were."""

EXTENSIONS: dict[str, int] = {
    **{choice.name: choice.percent for choice in _OF_ENGINES if choice.place < _LATER},
    # what a block is
    "structured_passing": 32,
    "structured_returns": 28,
    "method": 13,
    "alternatives": 13,
    IMAGES: 7,
    "attend": 14,
    "iadd": 12,
    # inputs
    "same_on_ranks": 8,
    # the mesh
    "tensor": 50,
    "pipeline": 8,
    # what a group is
    **{choice.name: choice.percent for choice in _ORDERED if choice.place < _LATER},
    # what the model is wrapped with
    "ignored": 10,
    "meta": 10,
    "compile": 7,
    "delays": 10,
    # schedule
    **{choice.name: choice.percent for choice in _OF_OPS if choice.place < _LATER},
    "losses_only": 3,
    # optimizer
    **{choice.name: choice.percent for choice in _OF_OPTIMIZERS if choice.place < _LATER},
    # added later, so that swarms stay as they were
    "rank_batches": 12,
    **{choice.name: choice.percent for choice in _ORDERED if choice.place >= _LATER},
    **{choice.name: choice.percent for choice in _OF_OPS if choice.place >= _LATER},
    "finalize": 4,
    "any_moment": 40,
    "ddp_options": 45,
    **{choice.name: choice.percent for choice in _OF_OPTIMIZERS if choice.place >= _LATER},
    **{choice.name: choice.percent for choice in _OF_ENGINES if choice.place >= _LATER},
    **{choice.name: choice.percent for choice in _OF_LOSSES},
    MIXTURE: 12,
    "adapter": 12,
    FUSED: 8,
}
"""Percent of the cases that have any."""
_CALLED = 2
"""How many more ops a case may have whose calls come at any moment."""
_BRINGS: Mapping[str, tuple[str, ...]] = {
    "structured_passing": (PRECISION,),  # casting is what ``fully_shard`` looks into inputs for
    # most of what an optimizer may have comes with a state, which a load brings back
    "save_load": tuple(choice for o in OPTIMIZER_OPTIONS for choice in o.choices),
    # only shards of other sizes are padded, anew where a parameter gets other memory
    "meta": ("odd_widths", "several_steps"),
    # norms between layers are sharded along the sequence, and embeddings by rows or columns
    "tensor": (PRECISION, "sequence", "ids"),
    **{
        choice.name: choice.brings
        for choice in (*_OF_ENGINES, *_OF_OPS, *_OF_GROUPS, *_OF_OPTIMIZERS)
        if choice.brings
    },
}
"""What is chosen more often where something else is, which does something of its own with it."""
_BROUGHT = 50
"""How often, in percent."""
NUM_BYTES = (
    2 + 2 * -(-len(CHOICES) // 8) + len(EXTENSIONS) + sum(map(len, _BRINGS.values())) + _CALLED
)
"""What :func:`swarm` reads off a tape, at most."""
_EXTENDED = 67
"""Percent of all cases."""
Swarm = Container[str]
"""The choices that one case may make."""


def may_cast(choices: Swarm) -> bool:
    """Return whether a schedule may change the dtype of everything."""
    return any(name in choices for name in CAST_CHOICES)


def is_cut(choices: Swarm) -> bool:
    """Return whether an engine cuts the model into stages."""
    return any(name in choices for name in _CUTTING)


def shards_experts(choices: Swarm) -> bool:
    """Return whether an engine shards experts over a mesh axis, as expert parallelism does."""
    return _spreads(choices, "experts")


def shards_positions(choices: Swarm) -> bool:
    """Return whether an engine splits positions over a mesh axis, as context parallelism does."""
    return _spreads(choices, "attention")


def _spreads(choices: Swarm, role: Role) -> bool:
    engines = (spec for spec in ENGINES.values() if spec.spreads == role)
    return any(spec.choice.name in choices for spec in engines if spec.choice)


def wants_even(choices: Swarm) -> bool:
    """Return whether a group may need parameters that the shard axis divides."""
    return any(o.extension.name in choices for o in GROUP_OPTIONS if o.wants_even and o.extension)


class Kept:
    """A swarm that draws whether to keep an extension when that is first asked for."""

    def __init__(self, tape: Tape, choices: Swarm) -> None:
        self._tape, self._choices = tape, choices
        self._kept: dict[object, bool] = {}

    def __contains__(self, choice: object) -> bool:
        if choice not in self._choices:
            return False
        if choice not in EXTENSIONS:
            return True
        if choice not in self._kept:
            self._kept[choice] = self._tape.keeps()
        return self._kept[choice]


def swarm(tape: Tape) -> frozenset[str]:
    """Draw choices: 25 % of all in two fifths of swarms, 50 % in two, 75 % in one."""
    density = tape.below(5)
    first, second = tape.bits(len(CHOICES)), tape.bits(len(CHOICES))
    mask = (first & second, first & second, first, first, first | second)[density]
    chosen = {choice for i, choice in enumerate(CHOICES) if mask >> i & 1}
    if tape.chance(_EXTENDED):
        chosen |= {name for name, percent in EXTENSIONS.items() if tape.chance(percent)}
        for choice, brought in _BRINGS.items():
            if choice in chosen:
                chosen |= {name for name in brought if tape.chance(_BROUGHT)}
    if "any_moment" in chosen:  # few ops together are on few cases
        chosen |= {tape.pick(_OF_OPS).name for _ in range(_CALLED)}
    return closed(chosen)


def closed(choices: Iterable[str]) -> frozenset[str]:
    """Return ``choices`` with what they need and without what they exclude."""
    chosen = set(choices)
    for choice, needed in _NEEDS:
        if choice in chosen:
            chosen |= needed
    for choice, excluded in _EXCLUDES:
        if choice in chosen:
            chosen -= excluded
    return frozenset(chosen)


def with_choice(choices: frozenset[str], choice: str) -> frozenset[str]:
    """Return ``choices`` with one more, and without those that exclude it."""
    excluding = {other for other, excluded in _EXCLUDES if choice in excluded}
    return closed((choices - excluding) | {choice})


def with_engines(choices: frozenset[str], engines: Sequence[EngineName]) -> frozenset[str]:
    """Return ``choices`` with those of ``engines`` that exclude some of them."""
    for choice in (spec.choice for spec in specs(engines)):
        if choice and choice.excludes and choice.name not in choices:
            choices = with_choice(choices, choice.name)
    return choices


_NEEDS: tuple[tuple[str, set[str]], ...] = (
    ("attend", {"sequence"}),
    ("method", {"nested"}),
    ("structured_passing", {"nested", "many_groups"}),
    ("other_dtypes", {"freeze_parameter"}),
    (FUSED, {"sequence"}),
    *((choice.name, {*choice.needs}) for choice in (*_OF_ENGINES, *_OF_OPS, *_OF_OPTIMIZERS)),
    *(
        (name, {choice.name})
        for c in (_OF_OPS, _OF_GROUPS, _OF_OPTIMIZERS)
        for choice in c
        for name in choice.needed_by
    ),
)
"""What a choice would rarely come to anything without."""

_EXCLUDES: tuple[tuple[str, set[str]], ...] = (
    *((choice.name, {*choice.excludes}) for choice in _OF_ENGINES),
    *((name, {kind.name}) for kind in KINDS for name in kind.excluded_by),
    # an image has no sequence axis; patches and plain values do not join
    (IMAGES, {"attend", "sequence", "ids", "several_inputs"}),
    *(
        (IMAGES, {kind.name})
        for kind, leaf in KINDS.items()
        if not {"sequence", "channels"}.isdisjoint(leaf.takes)
    ),
    *((choice.name, {*choice.excludes}) for choice in _OF_GROUPS),
    # local results are views; torch reshards DTensor parameters completely or not at all
    ("tensor", {"meta", "iadd", "reshard_int"}),
    # ``to_empty`` makes one parameter for each name (torch/nn/modules/module.py, _apply)
    ("meta", {"tie"}),
    *((choice.name, {*choice.excludes}) for choice in (*_OF_OPS, *_OF_OPTIMIZERS)),
    # DDP knows no policies of groups, and no other engine is judged with such a loss
    *((choice.name, {*choice.excludes, PRECISION}) for choice in _OF_LOSSES),
    *(
        (name, {choice.name})
        for c in (_OF_GROUPS, _OF_OPS, _OF_OPTIMIZERS)
        for choice in c
        for name in choice.excluded_by
    ),
)
"""What does not go together with a choice, in the order in which it is left out."""
