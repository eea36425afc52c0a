from __future__ import annotations

from fake_campaign import make_case
from msgspec.structs import replace

from fuzzshard.campaign.tally import Tally, how_compared
from fuzzshard.verdict import Compared, Note, Status, Verdict

CASE = replace(make_case(1), engines=("ddp", "replicate", "fully_shard", "fsdp1"))


def test_every_engine_that_was_drawn_says_how_it_was_compared_or_why_not() -> None:
    raised = str(Note("raised as expected", "no"))
    verdict = Verdict(
        status=Status.PASS,
        compared={
            "fully_shard": Compared(comparison="precision", tensors=8),
            "replicate": Compared(comparison="bitwise", tensors=3),
        },
        notes={"ddp": str(Note("not applicable", "a: b")), "replicate": raised},
    )
    assert how_compared(CASE, verdict) == {
        "ddp": Compared(comparison="not applicable"),
        "replicate": Compared(comparison="bitwise", tensors=3),
        "fully_shard": Compared(comparison="precision", tensors=8),
        "fsdp1": Compared(comparison=""),
    }
    assert Tally().add(0, CASE, verdict).compared == how_compared(CASE, verdict)
