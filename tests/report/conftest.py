from __future__ import annotations

from pathlib import Path

import pytest
from recorded import LIST_GROUP, RESHARD, finished, judged, one_finding, record

from fuzzshard.corpus.entry import Confirmation
from fuzzshard.events import FindingHit
from fuzzshard.verdict import Status


@pytest.fixture
def node1(tmp_path: Path) -> Path:
    """Ten seconds on two GPUs: six cases, two findings, one of them flaky and hit once more."""
    directory = tmp_path / "node1"
    signature = "divergence/fully_shard/registered_parameter"
    flaky = Confirmation(runs=10, reproduced=4, others={"PASS": 6})
    return record(
        directory,
        [
            *judged(features=["reshard:int", "leaf:linear"], seconds=0.5, at=0.0),
            *judged(
                Status.DIVERGENCE,
                features=["reshard:int", "schedule:no_sync"],
                seconds=0.5,
                at=1.0,
            ),
            *one_finding(directory, RESHARD, signature, at=2.0),
            *judged(Status.CRASH, features=["reshard:int"], at=4.0),
            *one_finding(
                directory, LIST_GROUP, "crash/fully_shard/RuntimeError", at=5.0, rate=flaky
            ),
            *judged(Status.DIVERGENCE, features=["reshard:int"], at=7.0),
            FindingHit(
                index=3,
                signature=signature,
                path=f"elsewhere/findings/{RESHARD}",
                hits=2,
                elapsed=7.1,
            ),
            *judged(Status.HANG, features=["reshard:int"], at=8.0),
            *judged(Status.REJECTED, features=["reshard:int"], seconds=2.0, at=8.0),
            finished(10.0, reason="2 distinct findings", exit_code=1),
        ],
        device="cuda",
    )


@pytest.fixture
def node2(tmp_path: Path) -> Path:
    """Five seconds on the CPU: two cases, the first finding of the other node once more."""
    directory = tmp_path / "node2"
    return record(
        directory,
        [
            *judged(features=["reshard:int", "leaf:mlp"], seconds=0.1, at=0.0),
            *judged(Status.DIVERGENCE, features=["reshard:int"], seconds=0.1, at=1.0),
            *one_finding(
                directory, RESHARD, "divergence/fully_shard/registered_parameter", at=1.0
            ),
            finished(5.0, exit_code=1),
        ],
    )
