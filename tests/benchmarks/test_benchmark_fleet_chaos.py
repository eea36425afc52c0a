from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils")

from fleet_chaos import check_slot

from fuzzshard.events import CaseJudged, CaseStarted
from fuzzshard.journal.schema import JOURNAL_FILE, connect
from fuzzshard.journal.writer import JournalWriter, SessionStart
from fuzzshard.verdict import Status


def make_slot(folder: Path, written: Iterable[int], told: Iterable[int]) -> Path:
    """What a node leaves whose campaign has written these verdicts, and said those."""
    (folder / "corpus").mkdir()
    path = folder / "corpus" / JOURNAL_FILE
    start = SessionStart(
        stream={}, limits={}, seed=1, stream_seed=1, world_size=2, worlds=1, device="cpu"
    )
    writer = JournalWriter(path, connect(path), start)
    for index in written:
        writer.record(CaseStarted(index=index))
        writer.record(CaseJudged(index=index, status=Status.PASS, seconds=0.1))
    said = [json.dumps({"event": "case_judged", "index": index}) for index in told]
    (folder / "run.log").write_text("\n".join([*said, "a warning", '{"event": "cut off']))
    return folder


@pytest.mark.parametrize(
    ("written", "told", "wrong"),
    [
        ((0, 1, 2), (0, 1, 2), None),
        ((0, 1, 2), (0, 1), None),  # killed between writing and saying
        ((0, 1, 2), (0,), "2 verdicts were written and not said, in 1 sessions"),
        ((0, 1), (0, 1, 2), "1 verdicts were said and not written"),
        ((0, 1), (0, 1, 1), "1 verdicts were said and not written"),
        ((0, 1, 1), (0, 1, 1), "case 1 was judged twice"),
    ],
)
def test_chaos_in_a_fleet_notices_what_a_journal_lacks(tmp_path, written, told, wrong):
    problems = check_slot(make_slot(tmp_path, written, told))
    assert problems == ([] if wrong is None else [f"{tmp_path.name}: {wrong}"])
