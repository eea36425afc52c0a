"""Branches that no case takes: found again by their text wherever they stand, and each with a
reason.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from unreached import END, Explanations, Reason, load_reasons

from fuzzshard.errors import UsageError

SOURCE = """
class Group:
    def unshard(self, sizes):
        if sizes[0] > 1:  # several
            raise AssertionError("no")
        for size in sizes:
            self.total += size

    def reshard(self):
        if self.sizes[0] > 1:
            return
"""
LINE = {"if": 4, "raise": 5, "for": 6, "other if": 10}


@dataclasses.dataclass
class File:
    path: str
    missing: list[tuple[int, int, str]]


def explained(tmp_path: Path, *reasons: Reason, above: str = "") -> Explanations:
    """What ``reasons`` say of three branches of the source, which has ``above`` before it."""
    (tmp_path / "group.py").write_text(above + SOURCE)
    down = above.count("\n")
    pairs = [(LINE["if"], LINE["raise"]), (LINE["for"], -3), (LINE["other if"], -9)]
    missing = [(a + down, b + down if b > 0 else b, "") for a, b in pairs]
    return Explanations(tmp_path, [File("group.py", missing)], reasons)


CHECK = Reason(kind="check", reason="its own check", to="raise AssertionError*")
LOOP = Reason(
    kind="dead",
    reason="never empty",
    function="Group.unshard",
    source="for size in sizes:",
    to=END,
)
BRACKETS = Reason(kind="gap", reason="several", file="*.py", source="if *sizes[0] > 1:")


@pytest.mark.parametrize("above", ["", "import os\n\n\nos.getpid()\n"])
def test_reasons_are_found_by_text_on_whatever_line_it_is(tmp_path: Path, above: str) -> None:
    found = explained(tmp_path, CHECK, LOOP, BRACKETS, above=above)
    assert list(found.reasons.values()) == [CHECK, LOOP, BRACKETS]
    assert found.exit_code == 0
    assert [row["function"] for row in found.rows()] == [
        "Group.unshard",
        "Group.unshard",
        "Group.reshard",
    ]


def test_a_branch_without_a_reason_is_unexplained_and_the_exit_code_says_so(
    tmp_path: Path,
) -> None:
    found = explained(tmp_path, CHECK, LOOP)
    (branch,) = found.unexplained
    assert (branch.function, branch.source, branch.to) == (
        "Group.reshard",
        "if self.sizes[0] > 1:",
        END,
    )
    assert found.exit_code == 1
    assert "1 UNEXPLAINED" in found.summary()
    assert found.rows()[-1]["kind"] == "UNEXPLAINED"


def test_the_first_reason_that_matches_counts_and_others_are_named_as_idle(tmp_path: Path) -> None:
    anything = Reason(kind="gap", reason="whatever")
    found = explained(tmp_path, anything, CHECK)
    assert set(found.reasons.values()) == {anything}
    assert found.idle == [CHECK]


def test_the_table_is_read_and_one_with_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    assert len(load_reasons()) > 50
    table = tmp_path / "table.toml"
    table.write_text('[[branch]]\nkind = "luck"\nreason = "none"\n')
    with pytest.raises(UsageError, match="has the kind 'luck'"):
        load_reasons(table)
    table.write_text('[[branch]]\nline = 5\nkind = "gap"\nreason = "by number"\n')
    with pytest.raises(UsageError, match="is not a table of branches"):
        load_reasons(table)
