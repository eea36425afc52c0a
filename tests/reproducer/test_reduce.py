"""Scripts are reduced as scripts: to an exact minimum, and never to another failure."""

from __future__ import annotations

import contextlib
import io
import time
import traceback
from pathlib import Path

import msgspec
import pytest

from fuzzshard.campaign.finding_store import FindingStore
from fuzzshard.campaign.known import Found
from fuzzshard.corpus.entry import CorpusEntry, make_entry
from fuzzshard.corpus.store import save_shrunk
from fuzzshard.corpus.verify import Condition, verify
from fuzzshard.doctor import clean_case
from fuzzshard.drafts import reduced as drafts_reduced
from fuzzshard.drafts.reduced import reasons, reduced_script
from fuzzshard.reproducer.forked import ForkedRanks, ScriptRun
from fuzzshard.reproducer.header import of_what_is_there
from fuzzshard.reproducer.reduce import patched, reduced
from fuzzshard.verdict import Finding, Status, Verdict

FINDING = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="0.5 at [0]",
    expected="1.0 at [0]",
    op=1,
    name="linear0.weight",
)
INFO = {"torch": "2.15.0", "backend": "gloo"}

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of texts that are tried

TOP = "# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)\n# Why.\n"

PLANTED = f"""{TOP}import contextlib
import copy
import os
import re


class Unused:
    pass


def doubled(value):
    # twice as much
    return 2 * value


def shown(value, of=0):
    seen = [value]
    return seen


device = "cuda" if copy.copy(0) >= 2 else "cpu"
first = doubled(3)
with contextlib.suppress(ValueError):
    # why this number
    second = [
        7,
    ]
third = re.sub("a", "b", "c", count=1)
copied = copy.deepcopy(second)
result = shown(
    copied,
    of=first,
)
text = "seven is wrong"
# Comments of what stays are there.
assert result != [[7]], text
print(third)
os._exit(0)
"""

MINIMAL = """# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# Why.
import copy

# Comments of what stays are there.
assert [copy.deepcopy([7])] != [[7]], "seven is wrong"
"""


def run(text: str) -> str:
    """Run a script here, and return what it prints of its error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(text, "repro.py", "exec"), {})
    except Exception:
        return traceback.format_exc()
    return ""


class Here:
    """Runs scripts of one rank in this process."""

    def __init__(self, folder: object) -> None:
        self.path = folder / "repro.py"
        self.texts: list[str] = []

    def __call__(self, text: str, num_ranks: int, *, mends=(), **others) -> ScriptRun:
        self.texts.append(text)
        output = "" if mends and "os" not in mends else run(text)
        return ScriptRun((1 if output else 0,), output)

    def __enter__(self):
        return self

    def __exit__(self, *raised: object) -> None:
        pass


def test_a_script_is_reduced_to_an_exact_minimum() -> None:
    small = reduced(PLANTED, lambda text: "AssertionError: seven is wrong" in run(text))
    assert small == MINIMAL


CALLED_TWICE = f"""{TOP}import copy


def train(model):
    seen = []
    if model is plain:
        seen.append(model)
    else:
        seen.extend([model, model])
    return [len(seen)]


plain = ["plain"]
model = copy.copy(plain)
expected = train(plain)
observed = train(model)
observed = observed[0]
assert expected[0] == observed, f"one is wrong: {{expected}} {{observed}}"
"""


def test_a_function_is_written_twice_if_that_takes_no_more_lines() -> None:
    small = reduced(CALLED_TWICE, lambda text: "one is wrong: [1] 2" in run(text))
    assert "def train" not in small
    assert "if" not in small
    longer = CALLED_TWICE.replace("    seen = []\n", "    seen = []\n" + "    print(1)\n" * 9)
    small = reduced(longer, lambda text: "[1] 2" in run(text) and text.count("print") >= 9)
    assert "def train" not in small  # what only one caller needs goes
    longer = longer.replace("print(1)", "told.append(1)").replace("plain =", "told = []\nplain =")

    def shows(text: str) -> bool:
        return "one is wrong: [1] 2" in run(
            text.replace("assert", "assert len(told) == 18\nassert")
        )

    assert "def train" in reduced(longer, shows)


def test_the_first_comment_tells_nothing_of_what_is_gone() -> None:
    run = "# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)"
    said = f"{run}\n# Output 0 under fully_shard is not that of plain training with an all-reduce."
    used = f"{said}\nimport torch\n\nfully_shard(model)\ndist.all_reduce(x)\n"
    assert of_what_is_there(used) == used
    told = f"{run}\n# Output 0 is not that of plain training.\nimport torch\n"
    assert of_what_is_there(f"{said}\nimport torch\n") == told
    crash = (
        f"{run}\n# Under FullyShardedDataParallel: no. Found with torch 2.15.0.\nimport torch\n"
    )
    assert of_what_is_there(crash) == crash.replace("Under FullyShardedDataParallel: no", "No")


def test_the_seed_of_values_stays_whatever_it_is() -> None:
    script = f"{TOP}import torch\n\ntorch.manual_seed(3)\nx = torch.randn(2)\n"
    assert reduced(script, lambda text: True) == f"{TOP}import torch\n\ntorch.manual_seed(3)\n"


def test_what_is_wanted_no_more_is_as_small_as_it_came() -> None:
    runs = []

    def shows(text: str) -> bool:
        runs.append(text)
        return "AssertionError: seven is wrong" in run(text)

    small = reduced(PLANTED, shows, wanted=lambda: len(runs) < 8)
    assert len(runs) == 8
    assert len(MINIMAL) < len(small) < len(PLANTED)
    assert "AssertionError: seven is wrong" in run(small)


CRASHING = f"""{TOP}import copy


values = [1, 2]
given = copy.copy({{"a": 3}})
values.remove(2)
first = given.pop("a")
second = given.pop("a")
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts_reduced, "ForkedRanks", Here)


def entry_of(error: str, message: str) -> CorpusEntry:
    crash = msgspec.structs.replace(
        FINDING, oracle="exception", observed=f"{error}: {message}", op=1
    )
    verdict = Verdict(status=Status.CRASH, findings=(crash,))
    entry = make_entry(clean_case(2), verdict, INFO)
    return msgspec.structs.replace(entry, signature=f"crash/fully_shard/{error} in pop")


def checked(path, num_ranks: int, **others) -> ScriptRun:
    output = run(path.read_text())
    return ScriptRun((1 if output else 0,), output)


@pytest.mark.usefixtures("here")
def test_a_step_that_changes_the_reason_is_undone() -> None:
    entry = entry_of("KeyError", "'a'")
    small = reduced_script(entry, CRASHING, check=checked)
    assert "KeyError: 'a'" in run(small)
    assert small.endswith('\ngiven = copy.copy({"a": 3})\ngiven.pop("a")\ngiven.pop("a")\n')


@pytest.mark.usefixtures("here")
def test_a_script_that_does_not_show_its_finding_stays_as_it_is() -> None:
    entry = entry_of("ValueError", "another one")
    assert reduced_script(entry, CRASHING, check=checked) == CRASHING


@pytest.mark.usefixtures("here")
def test_what_fails_under_torchrun_for_another_reason_is_not_taken() -> None:
    other = ScriptRun((1,), "SyntaxError: no")
    entry = entry_of("KeyError", "'a'")
    assert reduced_script(entry, CRASHING, check=lambda *_, **__: other) == CRASHING


@pytest.mark.usefixtures("here")
def test_a_wrong_tensor_of_which_nothing_is_known_stays_as_it_is() -> None:
    verdict = Verdict(status=Status.DIVERGENCE, findings=(FINDING,))
    entry = make_entry(clean_case(2), verdict, INFO)
    assert reduced_script(entry, PLANTED, check=checked) == PLANTED


HANGING = f"""{TOP}import re
from datetime import timedelta


limit = timedelta(seconds=30)
assert limit.seconds < 30, "a step that waits so long costs too much"
waits = "(" * limit.seconds
first = re.sub(waits, "b", "a")
second = re.sub("a", r"\\9", "a")
"""
"""Raises in the parser of patterns, and if it did not, in that of templates."""


@pytest.mark.usefixtures("here")
def test_a_hang_is_reduced_with_a_short_limit_to_one_in_the_same_place() -> None:
    hang = msgspec.structs.replace(FINDING, oracle="deadline")
    entry = make_entry(clean_case(2), Verdict(status=Status.HANG, findings=(hang,)), INFO)
    assert entry.signature == "desync/fully_shard"
    assert reduced_script(entry, HANGING, check=checked) == HANGING
    known = msgspec.structs.replace(entry, cause="broadcast_of_a_state_lacks_the_model")
    small = reduced_script(known, HANGING, check=checked)
    assert small.endswith('\nre.sub("(", "b", "a")\n')


def test_values_and_names_of_layers_are_no_reason() -> None:
    one = 'Traceback (most recent call last):\n  File "/a/repro.py", line 3, in train\n'
    two = 'Traceback (most recent call last):\n  File "/b/repro.py", line 9, in <module>\n'
    tensor = "AssertionError: rank 0, linear0.weight: expected\ntensor([[1.5]])\nobserved\n"
    other = "AssertionError: weight: expected\ntensor([2., 3.])\nobserved\n"
    assert [*reasons(f"{one}{tensor}None")] == [*reasons(f"{two}{other}None")]
    assert [*reasons(f"{one}{tensor}None")] != [*reasons(f"{two}{other}tensor([1.])")]
    assert [*reasons(f"{one}{tensor}tensor([1.])")] != [*reasons(f"{two}{other}tensor([nan])")]


def test_a_change_of_a_script_is_made_in_its_reduced_form() -> None:
    before = f"{TOP}import copy\n\n\na = copy.copy(1)\nb = 2\nassert a == b\n"
    after = before.replace("b = 2", "b = 1")
    small = f"{TOP}import copy\n\nb = 2\nassert copy.copy(1) == b\n"
    assert patched(before, after, small) == small.replace("b = 2", "b = 1")
    assert patched(before, before.replace("a = copy.copy(1)", "a = 2"), small) is None


def test_a_run_that_nobody_wants_any_more_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    with ForkedRanks(tmp_path) as ranks:
        ran = ranks("import time; time.sleep(600)", 1, wanted=lambda: time.monotonic() < began)
    assert ran == ScriptRun((None,), "")


PIPELINE = """# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)
        self.linear1 = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        h1 = self.linear1(h0)
        return h1


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
mesh = init_device_mesh(device, (2,))
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
torch.manual_seed(1 + rank)
x = torch.randn(1, 2, device=device)
model(x).sum().backward()
model.linear1.weight.grad = None
optimizer.step()
assert model.linear1.weight.grad is not None, f"rank {rank}, linear1.weight: no gradient"
dist.destroy_process_group()
os._exit(0)
"""

ALONE = """# python repro.py  (exits 1 while this is so)
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
assert model[1].weight.grad is not None, "1.weight: no gradient"
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_script_of_two_ranks_becomes_one_of_one_process(run_script) -> None:
    def shows(text: str) -> bool:
        return "weight: no gradient" in run_script(text, 1 + ("torchrun" in text)).output

    assert reduced(PIPELINE, shows) == ALONE


def saved(corpus: Path, written: str, reduced: str) -> tuple[FindingStore, Path]:
    """Save a finding whose script is written so, and reduced so."""
    store = FindingStore(
        corpus,
        (),
        render=lambda *_, **__: [written],
        check=lambda *_, **__: ScriptRun((1,), "AssertionError: a"),
        reduce=lambda entry, script, **_: reduced,
    )
    verdict = Verdict(status=Status.DIVERGENCE, findings=(FINDING,))
    folder = store.save_found(Found(index=0, case=clean_case(2), verdict=verdict), INFO)
    assert store.verify(folder, store.entry(folder))
    return store, folder


def test_a_script_of_which_nothing_can_be_taken_is_as_it_was_written(tmp_path: Path) -> None:
    written = f"{TOP}assert 1 == 2\n"
    store, folder = saved(tmp_path, written, written)
    assert store.entry(folder).reduced == ""
    other = verify(folder / "case.json", lambda *_, **__: ["another"])
    assert other.condition is Condition.STALE


def test_a_reduced_script_is_saved_and_whole_until_somebody_edits_it(tmp_path: Path) -> None:
    written, smaller = f"{TOP}import torch\n\na = 1\nassert a == 2\n", f"{TOP}assert 1 == 2\n"
    store, folder = saved(tmp_path, written, smaller)
    script = folder / "repro.py"
    assert script.read_text() == smaller
    assert verify(folder / "case.json", lambda *_, **__: [written]).condition is Condition.OK
    script.write_text(smaller.replace("1", "3"))
    assert verify(folder / "case.json", lambda *_, **__: [written]).condition is Condition.STALE
    save_shrunk(folder, store.entry(folder), written)
    assert store.entry(folder).reduced == ""
    assert verify(folder / "case.json", lambda *_, **__: [written]).condition is Condition.OK
