from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzzshard.corpus import portable
from fuzzshard.corpus.entry import make_entry
from fuzzshard.corpus.expectation import with_finding
from fuzzshard.corpus.portable import portable_text
from fuzzshard.doctor import clean_case
from fuzzshard.verdict import Finding, Status, Verdict

FSDP_STATE = "torch/distributed/fsdp/_fully_shard/_fsdp_state.py"
FILES = {
    f"/home/jo/venv/lib/python3.11/site-packages/{FSDP_STATE}": FSDP_STATE,
    "/usr/lib/python3/dist-packages/torch/_tensor.py": "torch/_tensor.py",
    "/opt/python/lib/python3.13t/contextlib.py": "contextlib.py",
    str(Path(portable.__file__)): "fuzzshard/corpus/portable.py",
    "/home/jo/faults/half_gradient.py": "half_gradient.py",
    "<frozen runpy>": "<frozen runpy>",
    "<eval_with_key>.7 from /opt/site-packages/torch/fx/graph.py:17 in wrapped": (
        "<eval_with_key>.7 from torch/fx/graph.py:17 in wrapped"
    ),
}
"""Files of frames, and what other machines know them as."""


def frame(file: str) -> str:
    where = f'  File "{file}", line 7, in run\n    self.step()\n'
    return f"Traceback (most recent call last):\n{where}RuntimeError: no\n"


@pytest.mark.parametrize("file", FILES)
def test_a_stack_names_its_files_as_they_are_imported(file: str) -> None:
    assert portable_text(frame(file)) == frame(FILES[file])


def test_what_faulthandler_writes_is_a_stack_too() -> None:
    at = '  File "/a/site-packages/torch/_tensor.py", line 697 in register_hook\n'
    text = f"Fatal Python error: Aborted\n\n{at}"
    assert '  File "torch/_tensor.py", line 697 in register_hook' in portable_text(text)


def test_a_file_below_two_folders_of_the_path_is_named_from_the_inner_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "benchmarks"), *sys.path])
    portable._homes.cache_clear()
    try:
        assert portable_text(frame(f"{tmp_path}/benchmarks/hunt.py")) == frame("hunt.py")
    finally:
        portable._homes.cache_clear()


def test_no_way_to_an_entry_keeps_paths_of_this_machine() -> None:
    crash = Finding(
        oracle="exception", engine="ddp", observed=frame(portable.__file__), expected="", op=0
    )
    verdict = Verdict(
        status=Status.CRASH, findings=(crash,), stacks={"rank 0": frame(portable.__file__)}
    )
    entry = make_entry(clean_case(2), verdict, {"torch": "2.13.0", "backend": "gloo"})
    changed = with_finding(entry, verdict, "2.13.0", "cpu")
    portable_frame = frame("fuzzshard/corpus/portable.py")
    assert entry.stacks == changed.stacks == {"rank 0": portable_frame}
    assert entry.findings[0].observed == changed.findings[0].observed == portable_frame
