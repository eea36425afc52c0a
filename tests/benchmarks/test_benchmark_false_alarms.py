import dataclasses
import itertools
import threading
from pathlib import Path

import pytest
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

from fuzzshard.campaign.control import Control
from fuzzshard.campaign.known import Found, Known, Registry
from fuzzshard.campaign.prefetch import Prefetch
from fuzzshard.campaign.saved import load_known, share_causes
from fuzzshard.case.case import Case, Checkpoint, Inputs, Mesh, TensorSpec
from fuzzshard.case.graph import Block, Call, Child, Linear
from fuzzshard.case.schedule import Backward, Forward
from fuzzshard.corpus.causes import CAUSES_FILE, read_causes
from fuzzshard.corpus.entry import make_entry
from fuzzshard.corpus.store import only_case, save_shrunk
from fuzzshard.errors import UsageError
from fuzzshard.verdict import Finding, Status, Verdict

SMALL = Case(
    seed=0,
    model=Block(
        children=(Child(name="up", module=Linear(out=4)),),
        nodes=(Call(name="h", module="up", args=("x",)),),
        outputs=("h",),
    ),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward()),
)
CHECKPOINTED = replace(SMALL, checkpoints=(Checkpoint(module="up"),))
DIVERGES = Verdict(
    status=Status.DIVERGENCE,
    findings=(Finding(oracle="gradient", engine="fully_shard", observed="2", expected="1", op=1),),
)


def corpus_with(folder, case):
    save_shrunk(folder / "one", make_entry(case, DIVERGES, {"torch": "2.13", "backend": "gloo"}), "")
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
def test_without_known_findings_only_passing_and_refusing_is_explained(status, explanation):
    assert explain(Found(0, SMALL, Verdict(status=status)), Registry()) == explanation


def test_a_case_with_the_cause_of_a_saved_finding_is_explained_by_it(tmp_path):
    registry = load_known(corpus_with(tmp_path, SMALL))
    assert explain(Found(0, CHECKPOINTED, DIVERGES), registry) == KNOWN
    assert [known.hits for known in registry.known] == [1]


def test_a_case_that_lacks_a_feature_of_the_saved_finding_is_not_explained_by_it(tmp_path):
    assert explain(Found(0, SMALL, DIVERGES), load_known(corpus_with(tmp_path, CHECKPOINTED))) == UNEXPLAINED


def test_entries_of_one_cause_ask_for_what_they_share(tmp_path):
    both = replace(CHECKPOINTED, values="dyadic", dtype="float64")
    for name, case in (("one", CHECKPOINTED), ("two", both)):
        save_shrunk(tmp_path / name, make_entry(case, DIVERGES, {"torch": "2.13", "backend": "gloo"}), "")
    alone = load_known(tmp_path).known
    (tmp_path / "causes.toml").write_text('"recomputation" = ["one", "two"]')
    together = load_known(tmp_path).known
    assert [known.cause for known in together] == [alone[0].cause & alone[1].cause] * 2
    assert "checkpoint:module" in together[1].cause
    assert "values:dyadic" in alone[1].cause - together[1].cause


def test_a_cause_with_symptoms_explains_other_signatures_of_cases_that_have_what_its_entries_share(tmp_path):
    for name, case in (("one", CHECKPOINTED), ("two", replace(CHECKPOINTED, dtype="float64"))):
        save_shrunk(tmp_path / name, make_entry(case, DIVERGES, {"torch": "2.13", "backend": "gloo"}), "")
    crash = Finding(
        oracle="exception", engine="fully_shard", observed="", expected="", detail="KeyError in f"
    )
    found = Found(0, CHECKPOINTED, Verdict(status=Status.CRASH, findings=(crash,)))
    assert explain(found, load_known(tmp_path)) == UNEXPLAINED
    text = '"recomputation" = {{ symptoms = ["{}"], entries = ["one", "two"] }}'
    (tmp_path / "causes.toml").write_text(text.format("crash/ddp/*"))
    assert explain(found, load_known(tmp_path)) == UNEXPLAINED
    (tmp_path / "causes.toml").write_text(text.format("crash/fully_shard/*"))
    registry = load_known(tmp_path)
    assert explain(found, registry) == KNOWN
    assert explain(dataclasses.replace(found, case=SMALL), registry) == UNEXPLAINED
    registry.forget(registry.known[0])
    assert explain(found, registry) == UNEXPLAINED


def test_entries_that_share_nothing_have_not_one_cause(tmp_path):
    registry = Registry()
    for name, cause in (("one", {"reuse:alias"}), ("two", {"op:clip"})):
        registry.known.append(Known("a signature", tmp_path / name, frozenset(cause)))
    file = tmp_path / "causes.toml"
    file.write_text('"anything" = ["one", "two"]')
    with pytest.raises(UsageError, match="'anything' share no feature"):
        share_causes(registry, file)


@pytest.mark.parametrize("corpus", ["findings", "findings-2.11"])
def test_the_causes_of_the_saved_findings_name_entries_that_are_there(corpus):
    findings = Path(__file__).parents[2] / "corpus" / corpus
    named = {entry for cause in read_causes(findings / CAUSES_FILE).values() for entry in cause.entries}
    assert named <= {folder.name for folder in findings.iterdir()}
    assert load_known(findings).known


def test_several_corpora_explain_what_each_of_them_does(tmp_path):
    folders = [corpus_with(tmp_path / name, case) for name, case in (("old", SMALL), ("new", CHECKPOINTED))]
    assert [known.path.parent for known in load_known(*folders).known] == folders


def test_a_corpus_that_does_not_exist_explains_nothing(tmp_path):
    assert load_known(tmp_path / "nothing").known == []


def test_notes_are_counted_by_their_kind_and_not_by_the_modules_they_name():
    kinds = {
        note_kind(f"refused: a single root but got ({name}(4, 4), Scale())") for name in ("Linear", "MLP")
    }
    assert kinds == {"refused: a single root but got..."}
    assert note_kind("refused: Parameter 'a.b' is shared") == "refused: Parameter ... is shared"
    assert note_kind("not applicable: no_sync() cannot express it") == (
        "not applicable: no_sync() cannot express it"
    )


def test_a_finding_is_summarised_by_what_differs_where():
    assert summarise(DIVERGES) == "gradient at op 1: 2, expected 1"


class FakeWorld:
    """Gives every case of a dtype the same verdict. Ranks of several worlds run at the same time."""

    info = {"torch": "2.13", "backend": "gloo"}

    def __init__(self, verdicts, together=1):
        self.verdicts = verdicts
        self.together = threading.Barrier(together)

    def run(self, case, *, deadline=None, mends=()):
        self.together.wait(timeout=10)
        return self.verdicts[case.dtype]

    def restart(self):
        pass


def examine(tmp_path, registry, world, num_cases, jobs=1):
    seen = []
    examination = Examination(registry, tmp_path / "keep", seen.append)
    cases = Prefetch(itertools.repeat(SMALL), ahead=jobs, limit=num_cases)
    workers = [
        threading.Thread(target=examination.work, args=(world, cases, Control(None))) for _ in range(jobs)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return examination, seen


def test_what_rounding_might_explain_is_looked_up_in_the_precision_that_shows_it(tmp_path):
    doubtful = replace(DIVERGES, status=Status.INCONCLUSIVE)
    world = FakeWorld({"float32": doubtful, "float64": DIVERGES})
    registry = load_known(corpus_with(tmp_path, SMALL))
    examination, seen = examine(tmp_path, registry, world, num_cases=2)
    assert examination.result()["explanations"] == {KNOWN: 2}
    assert seen == [None, None]


def test_worlds_judge_at_the_same_time_and_count_together(tmp_path):
    world = FakeWorld({"float32": Verdict(status=Status.PASS, rung="bitwise")}, together=3)
    examination, seen = examine(tmp_path, Registry(), world, num_cases=6, jobs=3)
    assert examination.result()["statuses"] == {"PASS": 6}
    assert len(seen) == 6


def test_an_unexplained_case_is_saved_as_an_entry(tmp_path):
    world = FakeWorld({"float32": Verdict(status=Status.HANG, message="no progress")})
    examination, _ = examine(tmp_path, Registry(), world, num_cases=1)
    (entry,) = examination.unexplained
    assert (entry.status, entry.what, entry.repeats) == ("HANG", "no progress", True)
    assert only_case(Path(entry.path)).name == "case.json"
