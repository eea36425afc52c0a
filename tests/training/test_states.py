"""State dicts, checkpoints and resumed training on stock torch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    ZERO,
    chain,
    float_inputs,
    graph,
    groups,
    make_case,
)

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Checkpoint, Freeze, Mesh, Optimizer, Tie
from fuzzshard.case.graph import Alias, Block
from fuzzshard.errors import InvalidCase
from fuzzshard.mending.mend import mends_for
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import BatchNorm, LayerNorm
from fuzzshard.parts.leaves.running_sum import RunningSum
from fuzzshard.parts.op import BY_NAME, Op, StateOption
from fuzzshard.temporary import PREFIX
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.processes import fork_server

ADAM = Optimizer(kind="adam")
MOMENTUM = Optimizer(momentum=0.5, weight_decay=0.125)
TRAIN: tuple[Op, ...] = (FORWARD, BACKWARD, STEP, ZERO)
TAKE, IN_MEMORY, ON_DISK = (
    ops.TakeStateDict(),
    ops.SaveState(via="state_dict"),
    ops.SaveState(via="dcp"),
)
ZEROED, REBUILT = ops.CorruptState(how="zero"), ops.CorruptState(how="rebuild")
LOAD, ASSIGN = ops.LoadState(), ops.LoadState(assign=True)
OFF, ON = (ops.SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))
REPLACED = {
    "ddp": "load_state_dict(assign=True) replaces the parameters that DDP's constructor has hooked"
}

WAYS = tuple(itertools.product((IN_MEMORY, ON_DISK), (ZEROED, REBUILT), (LOAD, ASSIGN)))
OPPOSITE = ((IN_MEMORY, ZEROED, LOAD), (ON_DISK, REBUILT, ASSIGN))
"""Ways that have nothing in common: all that each has is what some other test fails for, too."""
OPTIMIZERS = {"sgd": Optimizer(), "momentum": MOMENTUM, "adam": ADAM}
MESHES = {"1d": Mesh(shard=4), "hsdp": Mesh(replicate=2, shard=2)}


def named(way: tuple[Op, Op, Op]) -> str:
    save, corrupt, load = way
    return f"{save.via}-{corrupt.how}-{'assign' if load.assign else 'in_place'}"


def in_ways(values: dict[str, Any], whole: str) -> list[Any]:
    """Each of ``values`` with each way to resume; for a release, where it is not the ``whole``
    one, which has them all, and the ways are no opposites.
    """
    return [
        pytest.param(
            way,
            value,
            id=f"{name}-{named(way)}",
            marks=() if name == whole or way in OPPOSITE else pytest.mark.slow,
        )
        for name, value in values.items()
        for way in WAYS
    ]


def resumed(save: Op, corrupt: Op, load: Op) -> tuple[Op, ...]:
    """Trains, saves, trains a corrupted model, and goes on from what was saved."""
    return (*TRAIN, save, corrupt, AGAIN, BACKWARD, STEP, ZERO, load, AGAIN, BACKWARD, STEP)


def run(world: World, case: Case) -> Verdict:
    validate(case)
    verdict = world.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    return verdict


@pytest.mark.parametrize(("way", "optimizer"), in_ways(OPTIMIZERS, "adam"))
def test_training_resumes_where_it_was_saved(
    two_ranks: World, way: tuple[Op, Op, Op], optimizer: Optimizer
) -> None:
    save, _, load = way
    verdict = run(two_ranks, make_case(schedule=resumed(*way), optimizer=optimizer))
    assert verdict.comparison == "bitwise"
    replaced = save == IN_MEMORY and load == ASSIGN
    assert verdict.notes == ({"ddp": f"not applicable: {REPLACED['ddp']}"} if replaced else {})


@pytest.mark.parametrize(("way", "mesh"), in_ways(MESHES, "1d"))
def test_uneven_and_empty_shards_resume(
    four_ranks: World, way: tuple[Op, Op, Op], mesh: Mesh
) -> None:
    model = chain(a=Linear(out=5), n=LayerNorm(), m=MLP(hidden=6), b=Linear(out=3, bias=False))
    case = make_case(
        model,
        resumed(*way),
        mesh=mesh,
        wrap=groups("a", ("n", "m"), ROOT, reshard=False),
        checkpoints=(Checkpoint(module="m", implementation="wrapper"),),
        optimizer=ADAM,
    )
    run(four_ranks, case)


UNUSED = graph("h0 = a(x)", "h1 = b(h0)", a=Linear(out=5), u=Linear(out=2), b=Linear(out=3))
TIED = chain(a=Linear(out=5), c=Linear(out=5), b=Linear(out=3))
OTHERS: dict[str, dict[str, Any]] = {
    "frozen": {"freezes": (Freeze(target="a"), Freeze(target="b.bias", after_wrap=True))},
    "unmanaged": {"wrap": groups("a")},
    "unused": {"model": UNUSED},
    "tied": {
        "model": TIED,
        "ties": (Tie(parameter="c.weight", source="a.weight"),),
        "wrap": groups(("a", "c"), "b", ROOT),
    },
    "not optimized": {"optimizer": Optimizer(kind="adam", exclude=("b",))},
}


@pytest.mark.parametrize(
    ("save", "corrupt"),
    [
        pytest.param(IN_MEMORY, ZEROED, id="state_dict-zero"),
        pytest.param(ON_DISK, REBUILT, id="dcp-rebuild"),
        pytest.param(IN_MEMORY, REBUILT, id="state_dict-rebuild", marks=pytest.mark.slow),
        pytest.param(ON_DISK, ZEROED, id="dcp-zero", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS.keys())
def test_special_parameters_resume(
    two_ranks: World, save: ops.SaveState, corrupt: ops.CorruptState, options: dict[str, Any]
) -> None:
    run(
        two_ranks,
        make_case(schedule=resumed(save, corrupt, LOAD), **{"optimizer": ADAM, **options}),
    )


def test_buffers_of_every_rank_resume_from_memory(two_ranks: World) -> None:
    model = chain(a=Linear(out=4), n=BatchNorm(), b=Linear(out=3))
    run(two_ranks, make_case(model, resumed(IN_MEMORY, REBUILT, LOAD)))


@pytest.mark.parametrize(("save", "persistent"), [(IN_MEMORY, True), (ON_DISK, False)])
def test_buffers_that_forwards_assign_resume_where_the_state_dict_has_them(
    two_ranks: World, save: ops.SaveState, persistent: bool
) -> None:
    model = chain(a=Linear(out=4), s=RunningSum(persistent=persistent), b=Linear(out=3))
    run(two_ranks, make_case(model, resumed(save, REBUILT, LOAD)))


def test_a_model_that_is_built_anew_keeps_flags_freezes_and_mode(two_ranks: World) -> None:
    settings = (
        OFF,
        ops.SetDivideFactor(factor=4.0),
        ops.SetRequiresGrad(target="b.bias", value=False),
        ops.SetMode(train=False),
    )
    built_anew = (IN_MEMORY, REBUILT, FORWARD, BACKWARD, LOAD)
    schedule = (*TRAIN, *settings, *built_anew, ON, AGAIN, BACKWARD, STEP)
    run(two_ranks, make_case(schedule=schedule, engines=("fully_shard",)))


def test_a_cast_model_is_built_anew_in_its_dtype(two_ranks: World) -> None:
    schedule = (ops.Cast(dtype="float64"), *TRAIN, ON_DISK, REBUILT, LOAD, *TRAIN)
    run(two_ranks, make_case(schedule=schedule, engines=("fully_shard",), optimizer=ADAM))


def test_a_state_may_be_loaded_twice_and_saved_again(two_ranks: World) -> None:
    loaded, again = (ON_DISK, ZEROED, LOAD), (REBUILT, LOAD)
    schedule = (*TRAIN, *loaded, *TRAIN, *again, *TRAIN, ON_DISK, *again, *TRAIN)
    run(two_ranks, make_case(schedule=schedule, optimizer=ADAM))


@pytest.mark.parametrize("op", [TAKE, IN_MEMORY, ON_DISK], ids=["take", "state_dict", "dcp"])
def test_a_state_dict_between_forward_and_backward_changes_nothing(
    two_ranks: World, op: Op
) -> None:
    wrap = groups("a", "b", ROOT, reshard=False)
    schedule = (*TRAIN, FORWARD, op, BACKWARD, STEP)
    run(two_ranks, make_case(schedule=schedule, wrap=wrap, optimizer=ADAM))


@pytest.mark.parametrize(
    "before", [(), (ops.Unshard(),), (FORWARD, BACKWARD)], ids=["first", "unshard", "later"]
)
def test_a_state_dict_follows_the_steps_after_it(two_ranks: World, before: tuple[Op, ...]) -> None:
    model = chain(a=Linear(out=5), n=BatchNorm(), b=Linear(out=3))
    schedule = (*before, TAKE, *TRAIN, *TRAIN, IN_MEMORY, ZEROED, LOAD, *TRAIN)
    run(two_ranks, make_case(model, schedule, wrap=groups("a", ("n", "b"), ROOT)))


@pytest.mark.parametrize(
    "model", [chain(a=Linear(out=5)), UNUSED], ids=["after training", "after a refusal"]
)
def test_no_checkpoint_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Block
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with World(WorldConfig(size=2)) as world:
        world.run(
            make_case(model, (*TRAIN, ON_DISK, *TRAIN, ON_DISK, REBUILT, LOAD), optimizer=ADAM)
        )
        assert set(tmp_path.glob(f"{PREFIX}*")) <= {fork_server()._logs.path}


@pytest.mark.parametrize("load", [LOAD, ASSIGN], ids=["in_place", "assign"])
def test_optimizer_state_that_the_checkpoint_lacks_is_refused(
    two_ranks: World, load: ops.LoadState
) -> None:
    case = make_case(UNUSED, (*TRAIN, ON_DISK, REBUILT, load, *TRAIN), optimizer=ADAM)
    validate(case)
    verdict = two_ranks.run(case)
    assert verdict.status is Status.REJECTED
    assert all("Missing" in note for note in verdict.notes.values())
    assert set(verdict.notes) == {"ddp", "fully_shard"}


def in_all_ways() -> Iterator[tuple[Op, Op]]:
    """Every combination of options of a state, and every way to lose what is saved so."""
    words = get_args(StateOption)
    for count in range(len(words) + 1):
        for options in itertools.combinations(words, count):
            for via, lost in itertools.product(BY_NAME, (ZEROED, REBUILT)):
                yield ops.SaveState(via=via, options=options), lost


@pytest.mark.slow
def test_states_with_options_resume(two_ranks: World) -> None:
    """Of all combinations; those that torch does not document are refused by the check."""
    freezes = (Freeze(target="a.bias"),)
    ran = 0
    for save, lost in in_all_ways():
        schedule = resumed(save, lost, LOAD)
        case = make_case(schedule=schedule, optimizer=ADAM, freezes=freezes)
        with contextlib.suppress(InvalidCase):
            validate(case)
            verdict = two_ranks.run(case, mends=mends_for())
            assert verdict.status is Status.PASS, (save, lost, verdict.findings[:2])
            ran += 1
    assert ran == 96


@pytest.mark.parametrize("options", [(), ("ignore_frozen_params",), ("full_state_dict",)])
def test_a_state_dict_that_is_asked_for_is_that_of_the_plain_model(
    two_ranks: World, options: tuple[StateOption, ...]
) -> None:
    take = ops.TakeStateDict(options=options)
    schedule = (take, *TRAIN, take, *TRAIN)
    run(two_ranks, make_case(schedule=schedule, freezes=(Freeze(target="a.bias"),)))


def test_the_own_state_of_an_optimizer_resumes(two_ranks: World) -> None:
    save = ops.SaveState(via="stateful")
    run(two_ranks, make_case(schedule=resumed(save, ZEROED, LOAD), optimizer=ADAM))


def test_ddp_that_a_forward_builds_anew_does_not_synchronise_what_is_frozen_then(
    two_ranks: World,
) -> None:
    freeze, unfreeze = (ops.SetRequiresGrad(target="a", value=value) for value in (False, True))
    schedule = (*TRAIN, freeze, IN_MEMORY, REBUILT, LOAD, *TRAIN, unfreeze, *TRAIN)
    verdict = run(
        two_ranks, make_case(schedule=schedule, engines=("ddp", "replicate", "fully_shard"))
    )
    assert set(verdict.notes) == {"replicate"}


@pytest.mark.parametrize("way", OPPOSITE, ids=named)
def test_replicate_resumes(two_ranks: World, way: tuple[Op, Op, Op]) -> None:
    run(two_ranks, make_case(schedule=resumed(*way), optimizer=ADAM, engines=("replicate",)))


def test_aliased_modules_resume(two_ranks: World) -> None:
    model = chain(a=Linear(out=5), c=Alias(target="a"), b=Linear(out=3))
    wrap = groups("a", "b", ROOT)
    run(
        two_ranks,
        make_case(model, resumed(ON_DISK, REBUILT, LOAD), wrap=wrap, inputs=float_inputs()),
    )
