"""Ranks run the statements that scripts print."""

from __future__ import annotations

import gc
import re
import traceback
import weakref
from typing import Any

import pytest
import torch
from cases import BACKWARD, FORWARD, STEP, ZERO, make_case
from torch import nn
from torch.optim import SGD

from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.case.case import Case, Freeze, Mesh, Optimizer
from fuzzshard.case.options import DDP
from fuzzshard.engines.ddp.engine import DDP as Engine
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.parts import ops
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import Op
from fuzzshard.program.helpers import called, sources
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.run import execute
from fuzzshard.program.scope import Scope
from fuzzshard.reproducer import script


class Recorded(Engine):
    """Notes what it executes, and wraps nothing."""

    def execute(self, lines: Any, **variables: Any) -> dict[str, Any]:
        self.__dict__.setdefault("ran", []).extend(lines)
        return {"model": self.model, "ddp": self.model}


CASE = make_case(
    mesh=Mesh(shard=2, pipeline=1),  # which makes scripts name the process group, as ranks do
    engines=("ddp",),
    ddp=DDP(buckets="one_each", hook="average", initial="first_rank"),
    freezes=(Freeze(target="a", after_wrap=True),),
)


def lines_of(case: Case) -> list[str]:
    mesh: Any = RankMesh(0, 1, torch.device("cpu"), *[None] * 4, 0)  # type: ignore[arg-type]
    return list(Recorded(case, mesh, torch.float32).ran)  # type: ignore[attr-defined]


def test_no_two_parts_define_the_same_function() -> None:
    names = [name for text in sources() for name in re.findall(r"(?m)^(?:def|class) (\w+)", text)]
    assert {"copied", "interrupt"} <= {*names}
    assert sorted(names) == sorted({*names})


def test_a_script_prints_what_a_rank_ran() -> None:
    printed = [line.strip() for line in script(CASE, signature="crash/ddp/X").splitlines()]
    ran = lines_of(CASE)
    assert len(ran) > 8
    assert [line for line in ran if line.strip() not in printed] == []


OPS = (
    ops.SetGradDtype(target="a", dtype="float64"),
    ops.SetGradDtype(target="a.weight"),
    ops.SetMode(train=False),
    ops.SetRequiresGrad(target="a", value=False),
    ops.SetFlag(flag="reshard_after_backward", value=False),
    ops.ClipGradNorm(max_norm=1.0),
    ops.ClipGradValue(clip_value=0.5),
    STEP,
    ZERO,
    ops.SaveState(via="state_dict"),
    ops.CorruptState(),
)


@pytest.mark.parametrize("op", OPS, ids=[op.tag for op in OPS])
def test_an_op_has_the_same_statements_on_ranks_and_in_scripts(op: Op) -> None:
    case = make_case(schedule=(FORWARD, BACKWARD, op), engines=("fully_shard",))
    printed = [line.strip() for line in script(case, signature="crash/fully_shard").splitlines()]
    scope = Scope(case, spec_of("fully_shard"), "model", "model", MeshNames(case, within=True))
    scope.now = ScheduleState(case)
    ran = [
        re.sub(r"(?<!\.)\bparameters\b", "model.parameters()", line)
        for line in op.statements(scope)
    ]
    assert ran
    assert [line for line in ran if line.strip() not in printed] == []


CHANGES = (
    ops.CorruptState(),
    ops.LoadState(),
    ops.LoadState(assign=True),
    ops.RunningAverage(copied=True),
    ops.Cast(dtype="float64"),
)


@pytest.mark.parametrize("op", [None, *CHANGES], ids=str)
def test_after_every_change_of_parameters_the_root_gets_another_event(op: Op | None) -> None:
    schedule = (FORWARD, BACKWARD, STEP, ops.SaveState(via="dcp"), *([op] if op else []), FORWARD)
    case = make_case(
        schedule=schedule, optimizer=Optimizer(post_optim_event=True), engines=("fully_shard",)
    )
    text = script(case, signature="crash/fully_shard")
    assert text.count("set_post_optim_event(event)") == (2 if op else 1)


def test_a_function_that_statements_call_is_defined_with_those_that_it_calls() -> None:
    sources = {"a": "def a():\n    return b() + a()", "b": "def b():\n    return 1", "c": ""}
    assert called("x = a()", sources) == ["a", "b"]
    assert called("def a():\n    return 2", sources) == []
    model = nn.Linear(2, 2)
    execute(["zero(model, optimizer)"], {"model": model, "optimizer": SGD(model.parameters())})
    assert not any(parameter.any() for parameter in model.parameters())


def test_statements_import_what_they_name() -> None:
    found = execute(["layers = [nn.Linear(2, 2)]", "copied = copy.deepcopy(layers)"], {})
    assert isinstance(found["copied"][0], nn.Linear)


def test_a_function_that_stays_keeps_no_model_alive() -> None:
    model = nn.Linear(2, 2)
    found = execute(["def hook():", "    return torch.ones(count)"], {"model": model, "count": 2})
    hook, alive = found.pop("hook"), weakref.ref(model)
    del found, model
    gc.collect()
    assert alive() is None
    with pytest.raises(NameError):
        hook()


def test_a_traceback_shows_the_statement() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        execute(["x = 1", "y = x / zero"], {"zero": 0})
    assert "y = x / zero" in "".join(traceback.format_exception(raised.value))
