from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import chain, make_case
from msgspec.structs import replace
from verdicts import ALWAYS, crash, divergence, entry

from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.commands import corpus_sets
from fuzzshard.corpus import gather
from fuzzshard.corpus.codec import encode_entry
from fuzzshard.corpus.distinct import distinct
from fuzzshard.corpus.entry import Confirmation, CorpusEntry, make_entry, slug
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.errors import EXIT_USAGE
from fuzzshard.parts.leaves.linear import Linear


def linears(count: int) -> Case:
    """Linears one after another: from two on, all have the same features."""
    return make_case(chain(**{f"l{index}": Linear(out=5) for index in range(count)}))


SMALL, MEDIUM, LARGE = linears(2), linears(3), linears(4)


def found(
    case: Case, oracle: str = "gradient", *, device: str = "cpu", **changes: object
) -> CorpusEntry:
    backend = "nccl" if device == "cuda" else "gloo"
    more = {"confirmed": ALWAYS, **changes}
    return entry(case, divergence(oracle), backend=backend, **more)


def save(corpus: Path, name: str, saved: CorpusEntry) -> Path:
    folder = corpus / "findings" / name
    write_atomic(folder / "repro.py", b"print()\n")
    write_atomic(folder / "case.json", encode_entry(saved))
    return folder


def save_bare(file: Path, case: Case) -> Path:
    write_atomic(file, codec.encode(case))
    return file


def kept(corpus: Path) -> list[str]:
    groups = distinct(gather.load([corpus])[0])
    return sorted(same.items[0].file.parent.name for same in groups)


def merge(corpus: Path, *sources: Path) -> list[str]:
    incoming = gather.load(sources)[0]
    target = gather.load([corpus])[0] if corpus.exists() else []
    return [
        what for what, _ in gather.merge(incoming, target, corpus, lambda *_, **__: "print()\n")
    ]


def in_corpus(corpus: Path) -> list[CorpusEntry]:
    return [item.entry for item in gather.load([corpus])[0]]


def test_the_smallest_case_of_a_signature_and_a_set_of_features_is_kept(
    tmp_path: Path,
) -> None:
    save(tmp_path, "large", found(LARGE))
    save(tmp_path, "small", found(SMALL))
    save(tmp_path, "medium", found(MEDIUM))
    assert kept(tmp_path) == ["small"]


@pytest.mark.parametrize(
    "other",
    [
        found(LARGE, "loss"),
        found(LARGE, device="cuda"),
        found(replace(LARGE, dtype="float64")),
        found(LARGE, lifecycle=Lifecycle.FIXED, good_on=("2.14.0",)),
    ],
    ids=["signature", "device", "features", "fixed"],
)
def test_what_shows_something_else_is_kept(tmp_path: Path, other: CorpusEntry) -> None:
    save(tmp_path, "small", found(SMALL))
    save(tmp_path, "other", other)
    assert kept(tmp_path) == ["other", "small"]


@pytest.mark.parametrize("weaker", [None, Confirmation(runs=3, reproduced=1)])
def test_a_confirmed_finding_is_kept_before_a_smaller_one_that_is_not(
    tmp_path: Path, weaker: Confirmation | None
) -> None:
    save(tmp_path, "confirmed", found(LARGE))
    save(tmp_path, "weaker", found(SMALL, confirmed=weaker))
    assert kept(tmp_path) == ["confirmed"]


def test_what_people_wrote_into_an_entry_that_is_left_out_is_kept(tmp_path: Path) -> None:
    save(tmp_path, "small", found(SMALL))
    save(tmp_path, "large", found(LARGE, issue="https://x/1", lifecycle=Lifecycle.WONTFIX))
    assert kept(tmp_path) == ["small"]
    (same,) = distinct(gather.load([tmp_path])[0])
    after = same.entry
    assert (after.issue, after.lifecycle, after.case) == ("https://x/1", Lifecycle.WONTFIX, SMALL)


def test_of_cases_that_are_to_pass_the_smallest_with_equal_features_is_kept(
    tmp_path: Path,
) -> None:
    small, large = save_bare(tmp_path / "s.json", SMALL), save_bare(tmp_path / "l.json", LARGE)
    (same,) = distinct(gather.load([tmp_path])[0])
    assert [item.file for item in same.items] == [small, large]


def test_merging_into_nothing_copies_everything_and_again_nothing(tmp_path: Path) -> None:
    name = "divergence-fully_shard-gradient-0123abcd"
    save(tmp_path / "node", name, found(SMALL))
    save(tmp_path / "node", "b", found(LARGE, "loss"))
    save_bare(tmp_path / "node" / "upstream" / "x.json", MEDIUM)
    assert merge(tmp_path / "corpus", tmp_path / "node") == ["added"] * 3
    assert (tmp_path / "corpus" / "upstream" / "x.json").exists()
    assert (tmp_path / "corpus" / "findings" / name / "repro.py").read_text() == "print()\n"
    assert sorted(e.signature for e in in_corpus(tmp_path / "corpus")) == sorted(
        e.signature for e in in_corpus(tmp_path / "node")
    )
    assert merge(tmp_path / "corpus", tmp_path / "node") == ["known"] * 3


def test_a_smaller_case_replaces_one_of_the_corpus_and_keeps_its_issue(tmp_path: Path) -> None:
    save(tmp_path / "corpus", "old", found(LARGE, issue="https://x/1"))
    save(tmp_path / "node", "new", found(SMALL))
    assert merge(tmp_path / "corpus", tmp_path / "node") == ["added", "replaced"]
    (kept,) = in_corpus(tmp_path / "corpus")
    assert (kept.case, kept.issue) == (SMALL, "https://x/1")
    assert (tmp_path / "node" / "findings" / "new").exists()


def test_a_larger_case_is_not_merged(tmp_path: Path) -> None:
    save(tmp_path / "corpus", "old", found(SMALL))
    save(tmp_path / "node", "new", found(LARGE))
    assert merge(tmp_path / "corpus", tmp_path / "node") == ["known"]
    assert [kept.case for kept in in_corpus(tmp_path / "corpus")] == [SMALL]


def test_of_several_nodes_the_smallest_case_is_merged(tmp_path: Path) -> None:
    for node, case in (("1", LARGE), ("2", SMALL), ("3", MEDIUM)):
        save(tmp_path / node, "x", found(case))
    assert merge(tmp_path / "corpus", tmp_path / "1", tmp_path / "2", tmp_path / "3") == [
        "added",
        "known",
        "known",
    ]
    assert [kept.case for kept in in_corpus(tmp_path / "corpus")] == [SMALL]


def test_equal_cases_of_two_nodes_know_the_torch_of_both(tmp_path: Path) -> None:
    save(tmp_path / "corpus", "x", found(SMALL))
    save(tmp_path / "node", "x", found(SMALL, bad_on=("2.12.0",), good_on=("2.14.0",)))
    assert merge(tmp_path / "corpus", tmp_path / "node") == ["updated", "known"]
    (kept,) = in_corpus(tmp_path / "corpus")
    assert (kept.lifecycle, kept.bad_on, kept.good_on) == (
        Lifecycle.FIXED,
        ("2.12.0", "2.13.0"),
        ("2.14.0",),
    )


@pytest.mark.parametrize(("torch", "kept"), [("2.14.0", 1), ("2.13.0+cu126", 2)])
def test_a_crash_that_another_release_has_in_another_function_is_merged_once(
    tmp_path: Path, torch: str, kept: int
) -> None:
    for version, function in (("2.13.0", "chunk_cat"), (torch, "copy_in")):
        seen = crash(f"RuntimeError in {function}", "expects a non-empty tensor")
        saved = make_entry(linears(1), seen, {"torch": version, "backend": "gloo"})
        save(tmp_path / version, "one", saved)
    merge(tmp_path / "corpus", tmp_path / "2.13.0", tmp_path / torch)
    assert len(in_corpus(tmp_path / "corpus")) == kept
    assert in_corpus(tmp_path / "corpus")[0].bad_on == (
        ("2.13.0", "2.14.0") if kept == 1 else ("2.13.0",)
    )


def test_different_findings_of_one_name_get_different_folders(tmp_path: Path) -> None:
    for node, device in (("1", "cpu"), ("2", "cuda")):
        save(tmp_path / node, "x", found(SMALL, device=device))
    save(tmp_path / "3", "x", found(replace(SMALL, dtype="float64")))
    assert (
        merge(tmp_path / "corpus", tmp_path / "1", tmp_path / "2", tmp_path / "3") == ["added"] * 3
    )
    assert len(in_corpus(tmp_path / "corpus")) == 3


def test_a_folder_that_is_not_named_as_a_corpus_names_it_gets_that_name(tmp_path: Path) -> None:
    save(tmp_path / "node", "000026", found(SMALL))
    (item,), _ = gather.load([tmp_path / "node"])
    folder = gather.add(item, tmp_path / "corpus", lambda *_, **__: "print()\n")
    assert folder.name == slug("divergence/fully_shard/gradient", SMALL)
    assert (folder / "repro.py").read_text() == "print()\n"


def test_cases_that_are_to_pass_are_added_and_replace_nothing(tmp_path: Path) -> None:
    save_bare(tmp_path / "corpus" / "regressions" / "x.json", LARGE)
    save_bare(tmp_path / "node" / "x.json", SMALL)
    assert merge(tmp_path / "corpus", tmp_path / "node") == ["added"]
    assert sorted(len(e.case.wrap) for e in in_corpus(tmp_path / "corpus")) == [3, 5]


def test_an_interrupted_merge_loses_nothing(tmp_path: Path) -> None:
    save(tmp_path / "corpus", "old", found(LARGE))
    save(tmp_path / "node", "new", found(SMALL))
    incoming, target = gather.load([tmp_path / "node"])[0], gather.load([tmp_path / "corpus"])[0]
    steps: Iterator[tuple[str, Path]] = gather.merge(
        incoming, target, tmp_path / "corpus", lambda *_, **__: "print()\n"
    )
    assert next(steps)[0] == "added"
    assert len(in_corpus(tmp_path / "corpus")) == 2


def hostile(node: Path, private: Path) -> list[str]:
    """Fills ``node`` with entries that lead elsewhere, wait, or fill memory; their names."""
    save(node, "linked-script", found(MEDIUM, "a")).joinpath("repro.py").unlink()
    (node / "findings" / "linked-script" / "repro.py").symlink_to(private)
    save(node, "piped-script", found(MEDIUM, "b")).joinpath("repro.py").unlink()
    os.mkfifo(node / "findings" / "piped-script" / "repro.py")
    save(node, "no-text", found(MEDIUM, "c")).joinpath("repro.py").write_bytes(b"\xff")
    with (save(node, "huge", found(MEDIUM, "d")) / "unshrunk.json").open("wb") as file:
        file.truncate(2**40)
    os.mkfifo(node / "pipe.json")
    (node / "loop.json").symlink_to("loop.json")
    (node / "link.json").symlink_to(save_bare(private.with_name("case.json"), SMALL))
    return ["linked-script", "piped-script", "no-text", "huge", "pipe", "loop", "link.json"]


def test_what_a_hostile_node_has_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = tmp_path / "private"
    private.write_text("print('private')")
    bad = hostile(tmp_path / "node", private)
    save(tmp_path / "node", "good", found(SMALL))
    corpus = tmp_path / "corpus"
    code = corpus_sets.merge(tmp_path / "node", into=corpus)
    said = capsys.readouterr().out.splitlines()

    assert code == EXIT_USAGE
    assert [file.name for file in corpus.rglob("*.json")] == ["case.json"]
    assert [any(name in line for line in said if "INVALID" in line) for name in bad] == [
        True for _ in bad
    ]
    assert sum("INVALID" in line for line in said) == len(bad)


def test_a_larger_case_is_merged_where_the_smaller_one_leads_elsewhere(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("")
    script = save(tmp_path / "bad", "x", found(MEDIUM)) / "repro.py"
    script.unlink()
    script.symlink_to(private)
    save(tmp_path / "good", "y", found(LARGE))
    incoming, broken = gather.load([tmp_path / "bad", tmp_path / "good"], follow=False)

    assert [item.entry.case for item in incoming] == [LARGE]
    assert len(broken) == 1


def test_a_source_that_is_a_link_itself_is_followed(tmp_path: Path) -> None:
    save(tmp_path / "node", "x", found(SMALL))
    (tmp_path / "link").symlink_to(tmp_path / "node")
    (tmp_path / "case.json").symlink_to(tmp_path / "node" / "findings" / "x" / "case.json")

    for given in ("link", "case.json"):
        incoming, broken = gather.load([tmp_path / given], follow=False)
        assert (len(incoming), broken) == (1, [])
