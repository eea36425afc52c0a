"""A training that is saved, built anew and loaded is the same, and what was lost has a name."""

from __future__ import annotations

import weakref

import pytest
import torch
from command_line import fuzzshard
from torch import nn
from user_models import Checked, functions_of, model, path_of, words_of

from fuzzshard.commands.check import Compared, Fuzzing
from fuzzshard.errors import EXIT_CLEAN, UsageError
from fuzzshard.subject.resume import lost, states
from fuzzshard.subject.subject import MeshShape, Subject, Training

SMALL = functions_of(path_of("resumed").parents[1] / "small.py")

ENGINES = ("fully_shard", "ddp", "fsdp1")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_is_resumed_is_the_same(engine: str, checked: Checked) -> None:
    report = checked(model("resumed"), engines=(engine,), steps=4, resume=2)
    report.require("rounding")
    assert report.trainings[0].lost == ()
    assert "saved, built anew and loaded before step 2" in str(report)


@pytest.mark.parametrize("engine", ["fully_shard", "ddp"])
def test_full_state_dicts_bring_it_back(engine: str, checked: Checked) -> None:
    report = checked(model("resumed"), engines=(engine,), resume=1, full_state_dicts=True)
    report.require("rounding")
    assert report.trainings[0].lost == ()


REPLICATED = MeshShape({"dp_replicate": 2, "dp_shard": 1})
MESHES = {
    "other axes": ("dp_shard=2", REPLICATED),
    "fewer ranks": ("dp_shard=2", MeshShape({"dp_shard": 1})),
    "more ranks": ("dp_shard=1", MeshShape({"dp_shard": 2})),
}


@pytest.mark.parametrize("engine", ["fully_shard", "ddp", "fsdp1"])
@pytest.mark.parametrize("change", MESHES)
def test_a_run_goes_on_in_another_mesh(change: str, engine: str, checked: Checked) -> None:
    if (engine, change) == ("fsdp1", "other axes"):
        pytest.skip("NO_SHARD reduces nothing along the other axis")
    saved, loaded = MESHES[change]
    options = {"engines": (engine,), "steps": 4, "resume": 2, "resume_mesh": loaded}
    report = checked(model("resumed"), saved, **options)
    report.require("rounding")
    assert report.trainings[0].lost == ()
    assert f"saved, built anew in the mesh {loaded} and loaded before step 2" in str(report)


@pytest.mark.parametrize("global_batch", [False, True])
def test_a_step_of_ones_own_goes_on_in_another_mesh(global_batch: bool, checked: Checked) -> None:
    fields = ("build", "loss", "train_step", "parallelize")
    subject = Subject(inputs=SMALL["batch"], **{field: SMALL[field] for field in fields})
    for saved, loaded in MESHES.values():
        options = {"resume": 1, "resume_mesh": loaded, "global_batch": global_batch}
        checked(subject, saved, **options).require("rounding")


@pytest.mark.slow
def test_a_group_of_ranks_each_goes_on_in_a_mesh_of_two_axes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--mesh", "dp_shard=4", "--resume", "1", "--resume-mesh", str(REPLICATED)]
    assert fuzzshard("check", *words_of(model("resumed")), *words) == EXIT_CLEAN
    assert capsys.readouterr().out.count(f"in the mesh {REPLICATED}") == 2


def test_a_load_that_takes_another_ranks_shard_is_seen(checked: Checked) -> None:
    subject = model("resumed", save="save", load="load_own_shard")
    options = {"engines": ("fully_shard",), "resume": 1, "resume_mesh": REPLICATED}
    (training,) = checked(subject, **options).trainings
    assert training.outcome == "different"
    assert "parameter first.weight" in training.lost


@pytest.mark.parametrize("engine", ["fully_shard", "ddp"])
def test_functions_of_the_users_own_may_save_and_load(engine: str, checked: Checked) -> None:
    subject = model("resumed", save="save", load="load")
    checked(subject, engines=(engine,), steps=3, resume=1).require("rounding")


@pytest.mark.parametrize(
    ("load", "what"),
    [
        ("load_model_alone", "exp_avg in the optimizer (of 3 parameters)"),
        ("load_optimizer_alone", "parameter second.weight"),
        ("load_without_steps", "step in the optimizer (of 3 parameters)"),
        ("load_with_another_rate", "lr of the optimizer"),
    ],
)
def test_what_was_lost_has_a_name(load: str, what: str, checked: Checked) -> None:
    subject = model("resumed", save="save", load=load)
    (training,) = checked(subject, engines=("fully_shard",), steps=4, resume=2).trainings
    assert training.outcome == "different"
    assert training.difference is not None
    assert training.difference.step == 2
    assert what in training.lost
    assert f"lost when resumed: {training.lost[0]}" in "\n".join(training.lines())


BESIDE = {
    "load_all": ("equal", ()),
    "load_without_scheduler": ("different", ("state of the LambdaLR",)),
    "load_without_scaler": ("equal", ("state of the GradScaler",)),
    "load_without_random_state": ("equal", ("random state",)),
    "": ("different", ("state of the GradScaler", "state of the LambdaLR", "random state")),
}


@pytest.mark.parametrize("load", BESIDE)
def test_what_a_loop_has_beside_an_optimizer_is_a_state_too(load: str, checked: Checked) -> None:
    named = {"build": "build_dropping_out", "optimizer": "optimizer_with_all"}
    named |= {"save": "save_all", "load": load} if load else {}
    subject = model("resumed", train_step="step_with_all", **named)
    (training,) = checked(subject, engines=("ddp",), steps=4, resume=2).trainings
    assert (training.outcome, training.lost) == BESIDE[load]


def test_a_buffer_that_is_in_no_state_dict_is_lost(checked: Checked) -> None:
    subject = model("resumed", build="build_forgetful")
    (training,) = checked(subject, engines=("ddp",), steps=3, resume=2).trainings
    assert (training.outcome, training.lost) == ("different", ("buffer scale",))


def test_states_of_several_parameters_are_one_and_numbers_may_come_back_as_tensors() -> None:
    before = {"lr of the optimizer": 0.1, "step of a in the optimizer": torch.tensor(2.0)}
    assert lost(before, {**before, "lr of the optimizer": torch.tensor(0.1)}) == ()
    assert lost(before, {**before, "lr of the optimizer": 0.2}) == ("lr of the optimizer",)
    assert lost(before, {**before, "step of a in the optimizer": 2}) == ()
    two = {f"step of {name} in the optimizer": torch.ones(1) for name in "ab"}
    assert lost(two, {}) == ("step in the optimizer (of 2 parameters)",)


@pytest.mark.parametrize(("steps", "resume"), [(3, 3), (3, -1), (1, 1)])
def test_a_step_that_is_not_trained_is_refused(steps: int, resume: int) -> None:
    with pytest.raises(UsageError, match="cannot be resumed"):
        Compared(steps=steps, resume=resume).trainings(model("resumed"))


def test_what_cannot_be_loaded_so_is_refused() -> None:
    for options in ({"resume_mesh": "dp_shard=2"}, {"full_state_dicts": True}):
        with pytest.raises(UsageError, match="say how --resume loads"):
            Compared(**options).trainings(model("resumed"))
    with pytest.raises(UsageError, match="cannot be divided"):
        Compared(resume=1, resume_mesh="dp_shard=3").trainings(model("resumed"))
    subject = model("resumed", save="save", load="load")
    with pytest.raises(UsageError, match="both say what is saved"):
        Compared(resume=1, full_state_dicts=True).trainings(subject)


def test_functions_without_the_others_are_refused() -> None:
    for names in ({"save": "save"}, {"load": "load"}, {"save": "save", "load": "load"}):
        with pytest.raises(UsageError, match="belong together"):
            Compared(resume=0 if len(names) == 2 else 1).trainings(model("resumed", **names))


def test_nothing_is_fuzzed_around_it() -> None:
    run = Training(mesh=MeshShape({"dp_shard": 2}), resume=1)
    with pytest.raises(UsageError, match="--fuzz"):
        Fuzzing(fuzz="all").check([run])


def test_a_weak_proxy_of_what_is_gone_is_no_scheduler() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    gone = weakref.proxy(nn.Linear(1, 1))
    assert "state of the ConstantLR" in states(model, optimizer, str)
    del gone, scheduler
