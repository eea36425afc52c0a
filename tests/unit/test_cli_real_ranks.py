"""The command line with real ranks, on CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import fuzzshard
from planting import fault_file

from fuzzshard.corpus.entry import make_entry
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.doctor import PLANTED_FAULT, clean_case
from fuzzshard.world import World, WorldConfig


def test_doctor_finds_its_planted_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzzshard("doctor", "--device", "cpu", "--world-size", 2) == 0
    assert "found: fully_shard made to double its gradients" in capsys.readouterr().out


def test_a_finding_replays_as_the_same_under_its_fault_and_as_fixed_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = tmp_path / "fault.py"
    fault.write_text(PLANTED_FAULT.read_text())
    with World(WorldConfig(size=2, preload=(str(fault),))) as world:
        verdict = world.run(clean_case(2))
        entry = make_entry(clean_case(2), verdict, world.info, preload=(str(fault),))
    folder = save_unshrunk(tmp_path / "corpus", entry, "")
    assert fuzzshard("replay", folder, "--device", "cpu", "--preload", fault) == 1
    assert fuzzshard("replay", folder, "--device", "cpu") == 0
    outcomes = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert outcomes == ["SAME", "replayed", "FIXED", "replayed"]


@pytest.mark.slow
def test_a_campaign_whose_reference_is_wrong_exits_with_1(tmp_path: Path) -> None:
    fault = ("--preload", fault_file("reference_wrong_gradient"))
    options = ("--max-findings", 1, "--no-shrink", "--confirm", 1, "--mends", "on", "--seed", 5)
    engines = ("--require", "engine:ddp", "engine:fully_shard")
    ranks = ("--device", "cpu", "--world-size", 2)
    corpus = tmp_path / "corpus"
    assert fuzzshard("run", *options, *engines, *ranks, *fault, "--corpus", corpus) == 1
    (folder,) = (corpus / "findings").iterdir()
    assert "-shared-" in folder.name
    assert fuzzshard("replay", folder, "--device", "cpu", *fault) == 1
