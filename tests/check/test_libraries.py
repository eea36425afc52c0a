"""Programs that are written as libraries' are: mistakes are named at once, and right ones pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from user_models import Checked, functions_of

from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import Subject

NAMED = functions_of(Path(__file__).parent / "mistakes" / "libraries.py")
LM = {"build": "build_lm", "inputs": "tokens", "loss": "loss_of", "parallelize": "shard_layers"}
CNN = {"build": "build_cnn", "inputs": "images"}

MISTAKES = {
    "norm_left_out": (
        LM | {"parallelize": "norm_left_out"},
        "gradients norm.weight, step 0",
        "a part of the sum over tp: not reduced over tp",
    ),
    "left_unsharded": (
        LM | {"train_step": "left_unsharded"},
        "gradients embed_tokens.weight, step 0",
        "are they still unsharded (set_reshard_after_backward)?",
    ),
    "checkpointed_reentrant": (
        LM | {"build": "build_lora", "parallelize": "checkpointed_reentrant"},
        "step 0, backward 0: RuntimeError: element 0 of tensors does not require grad",
        "warned: None of the inputs have requires_grad=True",
    ),
    "decayed_by_dims": (
        CNN | {"parallelize": "original", "optimizer": "decayed_by_dims"},
        "first difference: parameters",
        "weight_decay of the optimizer is 0.0 in place of 0.5: do its groups go by what",
    ),
    "decayed_by_dims, flat": (
        CNN | {"parallelize": "flat", "optimizer": "decayed_by_dims"},
        "first difference: parameters",
        "weight_decay of the optimizer is 0.0 in place of 0.5: do its groups go by what",
    ),
    "balanced_by_rank": (
        LM | {"build": "build_moe", "train_step": "balanced_by_rank"},
        "outputs layers.0, step 1",
        "training changes layers.0.expert_bias, and otherwise on each rank: not reduced?",
    ),
}

RIGHT = {
    "layers are sharded": LM,
    "a tie": LM | {"build": "build_tied_lm"},
    "DDP": LM | {"parallelize": "replicate"},
    "microbatches and a norm": LM | {"train_step": "clipped"},
    "adapters": LM | {"build": "build_lora"},
    "adapters, checkpointed": LM | {"build": "build_lora", "parallelize": "checkpointed"},
    "adapters under DDP": LM | {"build": "build_lora", "parallelize": "replicate"},
    "flat parameters": CNN | {"parallelize": "flat"},
    "parameters of FSDP1": CNN | {"parallelize": "original"},
    "experts that are balanced": LM | {"build": "build_moe", "train_step": "balanced"},
    "tensor parallel": LM | {"parallelize": "tensor_parallel"},
    "experts under DDP": LM | {"build": "build_moe", "parallelize": "replicate"},
}


def report_of(checked: Checked, functions: dict[str, str], **options: int) -> TrainingReport:
    subject = Subject(**{field: NAMED[name] for field, name in functions.items()})
    tensor_parallel = functions.get("parallelize") in ("norm_left_out", "tensor_parallel")
    mesh = "tp=2" if tensor_parallel else "dp_shard=2"
    (training,) = checked(subject, mesh, **options).trainings
    return training


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str, checked: Checked) -> None:
    functions, where, why = MISTAKES[name]
    training = report_of(checked, functions, microbatches=2)
    assert training.is_finding
    report = "\n".join(training.lines())
    assert where in report
    assert why in report


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_raises_no_alarm(name: str, checked: Checked) -> None:
    training = report_of(checked, RIGHT[name], steps=3, microbatches=2)
    assert training.outcome == "equal", "\n".join(training.lines())


def test_gradients_of_flat_parameters_are_compared(checked: Checked) -> None:
    training = report_of(checked, RIGHT["flat parameters"])
    (gradients,) = (row for row in training.rows if row.kind == "gradients")
    assert gradients.compared == 2 * len(("stem", *"abcd", "head")) * 2
    assert gradients.left_out == 0
