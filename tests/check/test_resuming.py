"""A training that is saved, built anew and loaded is the same, and what was lost has a name."""

from __future__ import annotations

import pytest
import torch
from user_models import Checked, model

from fuzzshard.commands.check import Compared, Fuzzing
from fuzzshard.errors import UsageError
from fuzzshard.subject.resume import lost
from fuzzshard.subject.subject import MeshShape, Training

ENGINES = ("fully_shard", "ddp", "fsdp1")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_is_resumed_is_the_same(engine: str, checked: Checked) -> None:
    report = checked(model("resumed"), engines=(engine,), steps=4, resume=2)
    report.require("rounding")
    assert report.trainings[0].lost == ()
    assert "saved, built anew and loaded before step 2" in str(report)


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


def test_functions_without_the_others_are_refused() -> None:
    for names in ({"save": "save"}, {"load": "load"}, {"save": "save", "load": "load"}):
        with pytest.raises(UsageError, match="belong together"):
            Compared(resume=0 if len(names) == 2 else 1).trainings(model("resumed", **names))


def test_nothing_is_fuzzed_around_it() -> None:
    run = Training(mesh=MeshShape({"dp_shard": 2}), resume=1)
    with pytest.raises(UsageError, match="--fuzz"):
        Fuzzing(fuzz="all").check([run])
