"""An error of fuzzshard's own is not told as one of the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import fuzzshard
from torch import nn
from user_models import model, words_of

from fuzzshard.errors import EXIT_INFRA
from fuzzshard.program.run import execute
from fuzzshard.subject.functions import call, is_ours
from fuzzshard.subject.record import kept

FAULT = Path(__file__).parent / "faults" / "fails_to_look.py"


@pytest.mark.parametrize("step", ["", "twice"])
def test_it_says_so_and_asks_for_a_report(step: str, capsys: pytest.CaptureFixture[str]):
    words = words_of(model("steps", train_step=step, parallelize="ddp"))
    assert fuzzshard("check", *words, "--preload", str(FAULT)) == EXIT_INFRA
    doing, said = capsys.readouterr().err.splitlines()
    assert doing == "training dp_shard=2, parallelize"
    assert "an error of fuzzshard's own, step 0, " in said
    assert "KeyError: 0, in wrong (fails_to_look.py:" in said
    assert "please report it" in said


def raised_by(function: Callable[..., object], *arguments: object) -> BaseException:
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_what_is_called_for_the_user_is_not_ours() -> None:
    linear = nn.Linear(2, 2)
    assert not is_ours(raised_by(call, linear, torch.zeros(3)))
    statements = ["model(torch.zeros(3))"]
    assert not is_ours(raised_by(execute, statements, {"model": linear, "torch": torch}))


def test_what_we_do_within_that_is_ours() -> None:
    linear = nn.Linear(2, 2)
    linear.register_forward_hook(lambda *_: kept("no tensor"))  # type: ignore[arg-type]
    assert is_ours(raised_by(call, linear, torch.zeros(2)))


def test_what_is_called_in_the_place_of_a_function_of_torch_passes_its_errors_on() -> None:
    ours, torchs = str(Path(is_ours.__code__.co_filename)), "/site-packages/torch/nn/module.py"

    def written_in(file: str, source: str, **known: object) -> Callable[..., object]:
        names = dict(known)
        exec(compile(source, file, "exec"), names)
        return names["run"]  # type: ignore[return-value]

    raising = "def run():\n    raise RuntimeError"
    calling = "def run():\n    inner()"
    for innermost, passes in ((torchs, True), (ours, False)):
        wrapper = written_in(ours, calling, inner=written_in(innermost, raising))
        outer = written_in(torchs, calling, inner=wrapper)
        assert is_ours(raised_by(call, outer)) is not passes
    wrapper = written_in(ours, calling, inner=written_in(torchs, raising))
    looks = written_in(ours, calling, inner=wrapper)
    assert is_ours(raised_by(call, written_in(torchs, calling, inner=looks)))
