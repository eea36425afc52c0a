"""Ranks run the statements that scripts print."""

from __future__ import annotations

import gc
import traceback
import weakref
from typing import Any

import pytest
import torch
from cases import make_case
from torch import nn

from fuzzshard.case.case import Case, Freeze, Mesh
from fuzzshard.case.options import DDP
from fuzzshard.engines.ddp.engine import DDP as Engine
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.program.run import execute
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


def test_a_script_prints_what_a_rank_ran() -> None:
    printed = [line.strip() for line in script(CASE, signature="crash/ddp/X").splitlines()]
    ran = lines_of(CASE)
    assert len(ran) > 8
    assert [line for line in ran if line.strip() not in printed] == []


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
