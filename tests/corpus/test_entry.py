from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cases import FORWARD, STEP, make_case

from fuzzshard.case import codec
from fuzzshard.corpus import codec as entry_codec
from fuzzshard.corpus.codec import decode_entry, encode_entry, read_entry
from fuzzshard.corpus.entry import FORMAT, Confirmation, CorpusEntry, digest, make_entry, slug
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.doctor import clean_case
from fuzzshard.errors import EXIT_USAGE, InvalidEntry
from fuzzshard.parts.ops import Forward, Reshard
from fuzzshard.verdict import Finding, Status, Verdict

CASE = clean_case(2)
FINDING = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="0.5",
    expected="0.25",
    op=2,
    name="up.weight",
    rung="bitwise",
    error=0.25,
    bound=0.0,
)
VERDICT = Verdict(
    status=Status.DIVERGENCE, findings=(FINDING,), rung="bitwise", stacks={"rank 0": "x\ny"}
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
        (edited(format=FORMAT + 1), f"format {FORMAT + 1}"),
        (edited(format=FORMAT + 1), "upgrade fuzzshard"),
        (encode_entry(ENTRY).replace(b'"0.5"', b'"0.7"'), "was changed after it was saved"),
        (edited(bad_on=["two"]), "Invalid version"),
        (edited(lifecycle="gone"), "lifecycle"),
        (edited(issue="ask Jo"), "issue"),
    ],
)
def test_what_an_entry_cannot_say_is_named(data: bytes, said: str) -> None:
    assert said in invalid(data)


@pytest.mark.parametrize("version", [0, -1])
def test_a_format_that_never_was_does_not_ask_for_an_upgrade(version: int) -> None:
    assert "upgrade" not in invalid(edited(format=version))


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


def test_an_older_format_is_read_by_its_own_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_old(fields: dict[str, Any]) -> CorpusEntry:
        return CorpusEntry(case=msgspec.convert(fields["experiment"], type(CASE)), signature="old")

    monkeypatch.setitem(entry_codec.READERS, -7, read_old)
    old = json.dumps({"format": -7, "experiment": json.loads(codec.encode(CASE))}).encode()
    assert decode_entry(old, PATH).signature == "old"


def test_a_finding_that_some_runs_show_is_flaky() -> None:
    entry = make_entry(
        CASE,
        VERDICT,
        {"torch": "2.13.0", "backend": "gloo"},
        confirmed=Confirmation(runs=3, reproduced=1),
    )
    assert entry.lifecycle is Lifecycle.FLAKY
    assert entry.flaky


def as_format_1(entry: CorpusEntry) -> bytes:
    """The file as the first release wrote it."""
    fields = json.loads(encode_entry(entry))
    for name in ("lifecycle", "bad_on", "good_on", "issue", "checksum"):
        del fields[name]
    return json.dumps({**fields, "format": 1}).encode()


@pytest.mark.parametrize("reproduced", [1, 3])
def test_format_1_is_read_as_if_it_had_a_lifecycle(reproduced: int) -> None:
    entry = make_entry(
        CASE,
        VERDICT,
        {"torch": "2.13.0+cpu", "backend": "gloo"},
        confirmed=Confirmation(runs=3, reproduced=reproduced),
    )
    assert decode_entry(as_format_1(entry), PATH) == entry


def test_a_regression_case_of_format_1_has_no_lifecycle() -> None:
    entry = CorpusEntry(case=CASE)
    assert decode_entry(as_format_1(entry), PATH) == entry


def test_the_layout_of_a_file_may_change() -> None:
    assert decode_entry(msgspec.json.format(encode_entry(ENTRY), indent=0), PATH) == ENTRY


def test_an_entry_written_by_hand_needs_no_checksum() -> None:
    assert decode_entry(edited(issue="https://github.com/x/y/issues/1"), PATH).issue.endswith("/1")


def test_the_relation_that_earlier_releases_knew_is_left_out() -> None:
    case = json.loads(codec.encode(CASE)) | {"relation": "reshard"}
    assert decode_entry(json.dumps(case).encode(), PATH).case == CASE
    assert decode_entry(edited(case=case), PATH) == ENTRY


def test_format_1_knows_no_culprits_and_not_what_other_runs_showed() -> None:
    fields = json.loads(as_format_1(ENTRY)) | {"confirmed": {"runs": 3, "reproduced": 2}}
    del fields["culprits"]
    entry = decode_entry(json.dumps(fields).encode(), PATH)
    assert (entry.format, entry.culprits) == (FORMAT, ())
    assert entry.confirmed == Confirmation(runs=3, reproduced=2)
    assert entry.confirmed.text() == "flaky, 2 of 3 runs"


@pytest.mark.parametrize(
    ("stored", "bad", "good", "lifecycle"),
    [
        ({"bad_on": ["2.10.0", "2.15.0+cpu"]}, ("2.10.0", "2.13.0", "2.15.0"), (), Lifecycle.OPEN),
        ({"bad_on": [], "good_on": ["2.14.0"]}, ("2.13.0",), ("2.14.0",), Lifecycle.FIXED),
        ({"bad_on": [], "good_on": ["2.13.0"]}, (), ("2.13.0",), Lifecycle.FIXED),
        ({"bad_on": [], "good_on": []}, ("2.13.0",), (), Lifecycle.OPEN),
        ({"lifecycle": "wontfix", "bad_on": ["2.13.0"]}, ("2.13.0",), (), Lifecycle.WONTFIX),
    ],
)
def test_what_a_bisection_wrote_into_a_file_of_format_1_is_read(
    stored: dict[str, object], bad: tuple[str, ...], good: tuple[str, ...], lifecycle: Lifecycle
) -> None:
    fields = json.loads(as_format_1(ENTRY)) | stored
    entry = decode_entry(json.dumps(fields).encode(), PATH)
    assert (entry.bad_on, entry.good_on, entry.lifecycle) == (bad, good, lifecycle)


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


def test_a_case_of_format_3_is_resharded_where_it_was_without_an_op() -> None:
    schedule = (FORWARD, Forward(grad=False), STEP)
    finding = msgspec.structs.replace(FINDING, op=2)
    entry = msgspec.structs.replace(
        ENTRY, format=3, case=make_case(schedule=schedule), findings=(finding,)
    )
    read = decode_entry(encode_entry(entry), PATH)
    assert read.case.schedule == (FORWARD, Forward(grad=False), Reshard(), STEP)
    assert read.findings[0].op == 3
    assert "reshard before it" in invalid(encode_entry(msgspec.structs.replace(entry, format=4)))
