import itertools
import threading
from pathlib import Path

import pytest
from cases import graph
from examination import (
    KNOWN,
    PASSED,
    REFUSED,
    UNEXPLAINED,
    Examination,
    explain,
    note_kind,
    summarise,
)
from msgspec.structs import replace
from verdicts import PASS, FakeWorld, divergence, entry

from fuzzshard.campaign.control import Control
from fuzzshard.campaign.drawing import Prefetch
from fuzzshard.campaign.explain import Explanation, Origin
from fuzzshard.campaign.known import load_known
from fuzzshard.case.case import Case, Checkpoint, Inputs, Mesh, TensorSpec
from fuzzshard.corpus.store import only_case, save_shrunk
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward
from fuzzshard.verdict import Status, Verdict

SMALL = Case(
    seed=0,
    model=graph("h = up(x)", up=Linear(out=4)),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward()),
)
CHECKPOINTED = replace(SMALL, checkpoints=(Checkpoint(module="up"),))
DIVERGES = divergence(observed="2", expected="1", op=1)
LATE = ("late",)


def corpus_with(folder, case):
    save_shrunk(folder / "one", entry(case, DIVERGES), "")
    return folder


@pytest.mark.parametrize(
    ("status", "explanation"),
    [
        (Status.PASS, PASSED),
        (Status.REJECTED, REFUSED),
        (Status.INCONCLUSIVE, UNEXPLAINED),
        (Status.INFRA, UNEXPLAINED),
        (Status.HANG, UNEXPLAINED),
    ],
)
def test_without_known_causes_only_passing_and_refusing_is_explained(status, explanation):
    assert explain(Explanation(Origin.NONE, Verdict(status=status))) == explanation


@pytest.mark.parametrize(
    ("origin", "explanation"),
    [(Origin.KNOWN, KNOWN), (Origin.NEW, UNEXPLAINED), (Origin.MEND, UNEXPLAINED)],
)
def test_a_finding_is_explained_by_the_mends_that_cure_it(origin, explanation):
    stock = PASS if origin is Origin.MEND else DIVERGES
    mended = PASS if origin is Origin.KNOWN else DIVERGES
    assert explain(Explanation(origin, stock, mended, LATE)) == explanation


def test_several_corpora_explain_what_each_of_them_does(tmp_path):
    folders = [
        corpus_with(tmp_path / name, case)
        for name, case in (("old", SMALL), ("new", CHECKPOINTED))
    ]
    assert [known.path.parent for known in load_known(*folders).known] == folders


def test_a_corpus_that_does_not_exist_explains_nothing(tmp_path):
    assert load_known(tmp_path / "nothing").known == []


def test_notes_are_counted_by_their_kind_and_not_by_the_modules_they_name():
    kinds = {
        note_kind(f"refused: a single root but got ({name}(4, 4), Scale())")
        for name in ("Linear", "MLP")
    }
    assert kinds == {"refused: a single root but got..."}
    assert note_kind("refused: Parameter 'a.b' is shared") == "refused: Parameter ... is shared"
    assert note_kind("not applicable: no_sync() cannot express it") == (
        "not applicable: no_sync() cannot express it"
    )


def test_a_finding_is_summarised_by_what_differs_where():
    assert summarise(DIVERGES) == "gradient at op 1: 2, expected 1"


class Together(FakeWorld):
    """Gives every case of a dtype the same verdict unless torch has the mend ``late``.

    Ranks of several worlds run at the same time.
    """

    def __init__(self, verdicts, together=1):
        super().__init__(lambda case: verdicts[case.dtype])
        self.cured_by = "late"
        self.together = threading.Barrier(together)

    def run(self, case, **how):
        self.together.wait(timeout=10)
        return super().run(case, **how)


def examine(tmp_path, world, num_cases, jobs=1, **options):
    seen = []
    options = {"mends": (), **options}
    examination = Examination(keep=tmp_path / "keep", on_case=seen.append, **options)
    cases = Prefetch(itertools.repeat(SMALL), ahead=jobs, limit=num_cases)
    workers = [
        threading.Thread(target=examination.work, args=(world, cases, Control(None)))
        for _ in range(jobs)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return examination, seen


def test_on_mended_torch_known_bugs_do_not_show(tmp_path):
    world = Together({"float32": DIVERGES})
    examination, seen = examine(tmp_path, world, num_cases=1, mends=LATE, on_mended=True)
    assert examination.result()["statuses"] == {"PASS": 1}
    assert seen == [None]


def test_worlds_judge_at_the_same_time_and_count_together(tmp_path):
    world = Together({"float32": Verdict(status=Status.PASS, comparison="bitwise")}, together=3)
    examination, seen = examine(tmp_path, world, num_cases=6, jobs=3)
    assert examination.result()["statuses"] == {"PASS": 6}
    assert len(seen) == 6


def test_an_unexplained_case_is_saved_as_an_entry(tmp_path):
    world = Together({"float32": Verdict(status=Status.HANG, message="no progress")})
    examination, _ = examine(tmp_path, world, num_cases=1)
    (entry,) = examination.unexplained
    assert (entry.status, entry.what, entry.repeats) == ("HANG", "no progress", True)
    assert only_case(Path(entry.path)).name == "case.json"
