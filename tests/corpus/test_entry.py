from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fuzzshard.case import codec
from fuzzshard.corpus.codec import decode_entry, encode_entry, read_entry
from fuzzshard.corpus.entry import FORMAT, Confirmation, digest, make_entry, slug
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.doctor import clean_case
from fuzzshard.errors import EXIT_USAGE, InvalidEntry
from fuzzshard.verdict import Finding, Status, Verdict

CASE = clean_case(2)
FINDING = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="0.5",
    expected="0.25",
    op=2,
    name="up.weight",
    comparison="bitwise",
    error=0.25,
    bound=0.0,
)
VERDICT = Verdict(
    status=Status.DIVERGENCE, findings=(FINDING,), comparison="bitwise", stacks={"rank 0": "x\ny"}
)
ENTRY = make_entry(
    CASE,
    VERDICT,
    {"torch": "2.13.0", "backend": "gloo"},
    confirmed=Confirmation(runs=3, reproduced=3),
)
PATH = Path("case.json")


def edited(**changes: object) -> bytes:
    """The entry's JSON with some fields replaced by hand."""
    fields = {**json.loads(encode_entry(ENTRY)), **changes}
    del fields["checksum"]
    return json.dumps(fields).encode()


def invalid(data: bytes) -> str:
    with pytest.raises(InvalidEntry) as caught:
        decode_entry(data, PATH)
    assert caught.value.exit_code == EXIT_USAGE
    message = str(caught.value)
    assert str(PATH) in message
    assert "\n" not in message
    return message


def test_an_entry_survives_writing_and_reading() -> None:
    assert decode_entry(encode_entry(ENTRY), PATH) == ENTRY


def test_an_entry_says_where_its_finding_was_seen() -> None:
    assert (ENTRY.torch, ENTRY.device, ENTRY.mesh) == ("2.13.0", "cpu", "shard 2")
    assert ENTRY.signature == "divergence/fully_shard/gradient"
    assert (ENTRY.lifecycle, ENTRY.bad_on, ENTRY.good_on) == (Lifecycle.OPEN, ("2.13.0",), ())
    assert not ENTRY.flaky


def test_a_finding_on_nccl_was_seen_on_cuda_whatever_the_device_is_called() -> None:
    info = {"torch": "2.13.0", "device": "NVIDIA H200", "backend": "nccl"}
    assert make_entry(CASE, VERDICT, info).device == "cuda"


FIELDS = json.loads(codec.encode(CASE))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (edited(surprise=1), "`surprise`"),
        (edited(case=FIELDS | {"surprise": 1}), "`surprise`"),
        (edited(case=FIELDS | {"wrap": [{"modules": ["nowhere"]}]}), "'nowhere'"),
        (edited(format=FORMAT + 1), f"format is {FORMAT + 1}, and this fuzzshard reads {FORMAT}"),
        (edited(format=FORMAT - 1), f"format is {FORMAT - 1}, and this fuzzshard reads {FORMAT}"),
        (encode_entry(ENTRY).replace(b'"0.5"', b'"0.7"'), "was changed after it was saved"),
        (edited(bad_on=["two"]), "Invalid version"),
        (edited(lifecycle="gone"), "lifecycle"),
        (edited(issue="ask Jo"), "issue"),
    ],
)
def test_what_an_entry_cannot_say_is_named(data: bytes, said: str) -> None:
    assert said in invalid(data)


def test_a_bare_case_is_an_entry_that_expects_to_pass() -> None:
    entry = decode_entry(codec.encode(CASE), PATH)
    assert (entry.case, entry.status, entry.signature) == (CASE, Status.PASS, "")


def test_every_truncation_is_one_clear_line() -> None:
    data = encode_entry(ENTRY)
    for length in range(0, len(data) - 2, 97):
        invalid(data[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"{}",
        b'{"format": "1"}',
        b"[" * 100_000,
        b'{"format":1' + b"0" * 40,
    ],
    ids=[
        "empty",
        "null",
        "list",
        "number",
        "not UTF-8",
        "no fields",
        "text",
        "deep",
        "huge number",
    ],
)
def test_what_is_no_entry_is_one_clear_line(data: bytes) -> None:
    invalid(data)


def test_a_finding_that_some_runs_show_is_flaky() -> None:
    entry = make_entry(
        CASE,
        VERDICT,
        {"torch": "2.13.0", "backend": "gloo"},
        confirmed=Confirmation(runs=3, reproduced=1),
    )
    assert entry.lifecycle is Lifecycle.FLAKY
    assert entry.flaky


@pytest.mark.parametrize(
    ("confirmation", "text"),
    [
        (Confirmation(runs=3, reproduced=3), "3 of 3 runs"),
        (Confirmation(runs=3, reproduced=2), "flaky, 2 of 3 runs"),
        (
            Confirmation(runs=10, reproduced=4, others={"PASS": 5, "HANG": 1}),
            "flaky, 4 of 10 runs (PASS in 5, HANG in 1)",
        ),
    ],
)
def test_how_often_a_finding_came_back_is_said_in_words(
    confirmation: Confirmation, text: str
) -> None:
    assert confirmation.text() == text


def test_the_layout_of_a_file_may_change() -> None:
    assert decode_entry(msgspec.json.format(encode_entry(ENTRY), indent=0), PATH) == ENTRY


def test_an_entry_written_by_hand_needs_no_checksum() -> None:
    assert decode_entry(edited(issue="https://github.com/x/y/issues/1"), PATH).issue.endswith("/1")


def test_a_file_that_cannot_be_read_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(InvalidEntry, match="cannot read"):
        read_entry(tmp_path / "missing.json")


def test_a_slug_is_a_file_name_that_tells_the_finding() -> None:
    assert slug(ENTRY.signature, CASE) == f"divergence-fully_shard-gradient-{digest(CASE)}"
    assert slug("crash/ddp/../../etc/passwd: \x00", CASE) == f"crash-ddp-etc-passwd-{digest(CASE)}"


def test_a_digest_is_the_same_in_every_process() -> None:
    program = """
from fuzzshard.corpus.entry import digest
from fuzzshard.doctor import clean_case
print(digest(clean_case(2)))
"""
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == digest(CASE)
