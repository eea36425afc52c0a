"""Whether output of a script is the finding or something else."""

from __future__ import annotations

import pytest

from fuzzshard.reproducer.check import ScriptResult
from fuzzshard.reproducer.shown import Shown, last_error, shown

TRACEBACK = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "repro.py", line 3, in <module>
[rank0]:   File "torch/distributed/fsdp/_collectives.py", line 1, in foreach_reduce
[rank0]: {error}
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def ran(error: str) -> ScriptResult:
    return ScriptResult(True, 1, TRACEBACK.format(error=error), 1.0)


@pytest.mark.parametrize(
    ("signature", "error", "verdict"),
    [
        ("divergence/fully_shard/gradient", "AssertionError: rank 0", Shown.YES),
        ("divergence/fully_shard/gradient", "TypeError: unexpected keyword", Shown.OTHERWISE),
        ("crash/fully_shard/RuntimeError in foreach_reduce", "RuntimeError: sizes", Shown.YES),
        ("crash/fully_shard/RuntimeError in chunk_cat", "RuntimeError: sizes", Shown.OTHERWISE),
        ("crash/fully_shard/IndexError in foreach_reduce", "RuntimeError: sizes", Shown.OTHERWISE),
        (
            "crash/fully_shard/BackendCompilerFailed in foreach_reduce",
            "torch._dynamo.exc.BackendCompilerFailed: backend='aot_eager' raised:\nTypeError: no",
            Shown.YES,
        ),
        (
            "crash/fully_shard/BackendCompilerFailed in foreach_reduce",
            "TypeError: BackendCompilerFailed",
            Shown.OTHERWISE,
        ),
        ("death/fully_shard/SIGSEGV", "Signal 11 (SIGSEGV) received by PID 7", Shown.YES),
        ("death/fully_shard/SIGSEGV", "ImportError: no torch", Shown.OTHERWISE),
        ("desync/fully_shard", "torch.distributed.DistBackendError: timed out", Shown.YES),
        ("desync/fully_shard", "ImportError: no torch", Shown.OTHERWISE),
        ("", "ValueError: anything", Shown.YES),
    ],
)
def test_a_script_shows_its_finding_only_by_failing_as_it_does(signature, error, verdict) -> None:
    assert shown(ran(error), signature) is verdict


def test_the_same_message_elsewhere_in_torch_is_the_same_crash() -> None:
    signature = "crash/fully_shard/RuntimeError in chunk_cat"
    assert shown(ran("RuntimeError: sizes"), signature, "RuntimeError: sizes") is Shown.YES
    assert (
        shown(ran("RuntimeError: 2 [3, 4]"), signature, "RuntimeError: 16 [1]\nTip") is Shown.YES
    )
    assert (
        shown(ran("RuntimeError: 2 [3, 4]"), signature, "RuntimeError: 16 dims") is Shown.OTHERWISE
    )
    assert shown(ran("RuntimeError"), signature, "RuntimeError: ") is Shown.OTHERWISE


def test_a_script_that_passes_does_not_show_the_finding() -> None:
    assert shown(ScriptResult(False, 0, "", 1.0), "divergence/ddp/loss") is Shown.NO


def test_the_last_error_is_that_of_the_script_and_not_torchruns() -> None:
    assert last_error(ran("ImportError: no  fully_shard").output) == "ImportError: no fully_shard"
