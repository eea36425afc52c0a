"""What is said of a finding whose engines agree with each other and not with the reference."""

from __future__ import annotations

from pathlib import Path

from cases import BACKWARD, FORWARD, make_case
from msgspec.structs import replace
from recorded import INFO, finished, record

from fuzzshard.corpus.codec import decode_entry, encode_entry
from fuzzshard.corpus.entry import make_entry
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.drafts.evidence import Evidence
from fuzzshard.drafts.words import reasons
from fuzzshard.events import FindingFound
from fuzzshard.report.html.page import page
from fuzzshard.report.node import read_node
from fuzzshard.report.show import drawn_findings
from fuzzshard.reproducer import scripts
from fuzzshard.verdict import Finding, Status, Verdict

ALONE = Finding(
    oracle="gradient",
    engine="ddp",
    observed="2 at [0] of [5]",
    expected="1 at [0] of [5]",
    op=1,
    name="a.bias",
    comparison="exact",
    error=1.0,
    bound=0.0,
)
SHARED = replace(ALONE, agrees_with=("fully_shard",))
DOUBT = (
    "ddp and fully_shard agree with each other bit for bit: code that they share may be wrong, or "
    "the reference"
)
CASE = make_case(schedule=(FORWARD, BACKWARD))
ENTRY = make_entry(CASE, Verdict(status=Status.DIVERGENCE, findings=(SHARED,)), INFO)


def test_an_entry_keeps_who_agrees_and_one_from_before_is_read() -> None:
    encoded = encode_entry(ENTRY)
    assert decode_entry(encoded, Path("case.json")).findings == (SHARED,)
    assert b"agrees_with" not in encode_entry(replace(ENTRY, findings=(ALONE,)))


def test_a_drawing_names_the_engines_and_says_what_may_be_wrong() -> None:
    drawn = " ".join(drawn_findings((SHARED,)).split())
    assert "gradient of ddp and fully_shard" in drawn
    assert DOUBT in drawn
    assert "agree" not in drawn_findings((ALONE,))


def test_a_draft_says_so_before_anything_is_reported() -> None:
    assert f"Before this is reported: {DOUBT}." in list(reasons(ENTRY, None, Evidence()))


def test_a_script_is_of_the_first_engine_and_names_the_other() -> None:
    script = next(scripts(CASE, signature=ENTRY.signature, findings=(SHARED,)))
    comment = " ".join(line.removeprefix("# ") for line in script.splitlines()[:5])
    assert DOUBT in comment
    assert "DistributedDataParallel(" in script
    assert "fully_shard(" not in script


def test_the_page_says_so_on_its_card(tmp_path: Path) -> None:
    folder = save_unshrunk(tmp_path, ENTRY, "")
    found = FindingFound(
        index=0,
        status=Status.DIVERGENCE,
        signature=ENTRY.signature,
        summary="",
        path=str(folder),
        elapsed=1.0,
    )
    record(tmp_path, [found, finished(2.0)])
    assert f"<p>{DOUBT}</p>" in page([read_node(tmp_path)])
