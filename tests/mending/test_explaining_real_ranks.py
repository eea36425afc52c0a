"""``fuzzshard explain`` with real ranks: planted faults, and mends that a user brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import ROOT, call, children, groups, make_case
from command_line import fuzzshard
from mend_files import mend_file
from msgspec.structs import replace
from planting import fault_file

from fuzzshard.campaign.explain import OnMends, Origin, explain, judge_explained, lifting
from fuzzshard.campaign.judge import judge
from fuzzshard.case import codec
from fuzzshard.case.graph import Block
from fuzzshard.corpus.files import write_atomic
from fuzzshard.doctor import clean_case
from fuzzshard.mending.mend import mends_for
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, SetRequiresGrad
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

pytestmark = pytest.mark.slow


CURES = """
def apply(patch):
    import inspect
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    kept = inspect.getclosurevars(FSDPParamGroup.finalize_backward).nonlocals
    patch(FSDPParamGroup, "finalize_backward", kept["right"])
"""

TRIPS = """
KIND = "tripwire"

def apply(patch):
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    pre_forward = FSDPParamGroup.pre_forward

    def watching(self, module, args, kwargs):
        if dist.get_rank() == 1:
            trip("rank_1_forwards")
        return pre_forward(self, module, args, kwargs)

    patch(FSDPParamGroup, "pre_forward", watching)
"""


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A case that has no finding on torch as it is."""
    file = tmp_path / "clean" / "case.json"
    write_atomic(file, codec.encode(clean_case(2)))
    return file.parent


def explained(
    capsys: pytest.CaptureFixture[str], case: Path, fault: str, *arguments: object
) -> tuple[int, dict[str, Any]]:
    preload = ("--preload", fault_file(fault))
    code = fuzzshard("explain", case, "--device", "cpu", "--json", *preload, *arguments)
    return code, json.loads(capsys.readouterr().out)


def test_a_planted_fault_is_new_until_somebody_brings_its_mend(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = explained(capsys, case, "wrong_gradient")
    assert (code, told["origin"], told["causes"]) == (1, "NEW", [])
    assert told["signature"] == "divergence/fully_shard/gradient"
    cures = mend_file(tmp_path / "mends", "cures", CURES)
    mend_file(tmp_path / "mends", "does_nothing", "def apply(patch): pass")
    code, told = explained(capsys, case, "wrong_gradient", "--extra-mends", cures.parent)
    assert (code, told["origin"], told["causes"]) == (0, "KNOWN", [str(cures)])
    assert told["signature"] == "divergence/fully_shard/gradient"


def test_several_cases_are_summed_up(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    write_atomic(other, codec.encode(replace(clean_case(2), engines=("ddp",))))
    cures = mend_file(tmp_path / "mends", "cures", CURES)
    preload = ("--preload", fault_file("wrong_gradient"))
    options = ("--device", "cpu", *preload, "--extra-mends", cures.parent)
    assert fuzzshard("explain", case, other, *options) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "explained 2: 1 KNOWN, 1 NONE"


def test_a_tripwire_tells_of_the_cause_that_kills_its_rank(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trips = mend_file(tmp_path / "mends", "rank_1_forwards", TRIPS)
    code, told = explained(capsys, case, "aborts_on_one_rank")
    assert (code, told["origin"]) == (1, "NEW")
    code, told = explained(capsys, case, "aborts_on_one_rank", "--extra-mends", trips.parent)
    assert (code, told["origin"], told["causes"]) == (0, "KNOWN", [str(trips)])
    fault = fault_file("aborts_on_one_rank")
    options = ("--device", "cpu", "--preload", fault, "--extra-mends", trips.parent)
    assert fuzzshard("explain", case, *options) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"KNOWN    {case}  desync/fully_shard"
    assert second == f"         {trips}: What a test has made up"


def test_what_passes_is_no_finding(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzzshard("explain", case, "--device", "cpu") == 0
    assert capsys.readouterr().out.split() == ["NONE", str(case)]


def test_ranks_go_on_after_a_mend_was_taken_off_and_the_fault_is_back(tmp_path: Path) -> None:
    cures = mend_file(tmp_path, "cures", CURES)
    with World(WorldConfig(size=2, preload=(str(fault_file("wrong_gradient")),))) as world:
        statuses = [
            world.run(clean_case(2), mends=on).status
            for on in ((), (str(cures),), (), (str(cures),))
        ]
    assert statuses == [Status.DIVERGENCE, Status.PASS, Status.DIVERGENCE, Status.PASS]


def test_a_refusal_that_a_known_bug_keeps_away_is_known_though_another_mend_lifts_it(
    two_ranks: World,
) -> None:
    """DDP's sink would hand in ``b`` for the first output, while the second forward has frozen it;
    it does not see outputs in a dataclass.
    """
    model = Block(
        children=children(a=Linear(out=5), b=Linear(out=5)),
        nodes=(call("h0", "a", "x"), call("h1", "b", "h0")),
        outputs=("h0", "h1"),
        returns="dataclass",
    )
    schedule = (
        Forward(outputs=(0,)),
        SetRequiresGrad(target="b", value=False),
        Forward(batch=1, outputs=(1,)),
        Backward(),
    )
    case = make_case(model, schedule, engines=("ddp",))
    explained = explain(two_ranks, case, mends_for())
    assert explained.stock.signature == "divergence/ddp/expectation/not refused"
    assert explained.known == ("outputs_in_a_dataclass_pass_by_the_sink",)
    (lifter,) = lifting(explained.stock, mends_for())
    assert judge(OnMends(two_ranks, (lifter,)), case).signature == explained.stock.signature
    as_a_tuple = replace(case, model=replace(model, returns="tuple"))
    assert lifting(judge(OnMends(two_ranks, (lifter,)), as_a_tuple), (lifter,))
    assert judge_explained(two_ranks, as_a_tuple, (lifter,), on_mended=True)[1].origin is (
        Origin.NONE
    )
    assert judge(two_ranks, as_a_tuple).status is Status.REJECTED


def test_a_planted_bug_that_a_known_one_hides_is_new_and_told_as_mended_torch_shows_it(
    two_ranks: World,
) -> None:
    """In torch as it is the head of a list group that runs by itself has no gradient anyway."""
    schedule = (Forward(grad=False), Forward(target="b"), Backward())
    case = make_case(schedule=schedule, wrap=groups(("a", "b"), ROOT), engines=("fully_shard",))
    fault = fault_file("reduces_twice")
    without = explain(two_ranks, case, mends_for())
    with World(WorldConfig(size=2, preload=(str(fault),))) as planted:
        explained = explain(planted, case, mends_for())
    assert without.known == ("list_group_forward_without_end",)
    assert (explained.origin, explained.shown_by_stock) == (Origin.NEW, False)
    assert explained.stock.signature == without.stock.signature
    assert explained.verdict.signature == "divergence/fully_shard/communication"
