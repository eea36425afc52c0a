import json
import math

import msgspec
import pytest
from hunt_rows import FOUND, MISSED, NOT_APPLICABLE, PlantedBug, Row, mutants, read_index, totals
from recall_tables import (
    cases_to_find,
    difficulties_table,
    rarely_found,
    row_line,
)
from signatures import bugs_of_signatures, signature_figures, signature_lines

from fuzzshard.errors import UsageError


def write_index(folder, *bugs):
    (folder / "INDEX.json").write_text(json.dumps(bugs))
    return folder


def row(outcome, **fields):
    return Row(id="bug", difficulty="easy", outcome=outcome, found=outcome == FOUND, **fields)


def test_the_index_is_read_without_what_it_says_about_triggers(tmp_path):
    planted = write_index(
        tmp_path, {"id": "a", "min_world": 2, "difficulty": "hard", "trigger": "secret"}
    )
    assert read_index(planted) == [PlantedBug("a", 2, "hard")]
    assert mutants(planted) == planted / "mutants"


def test_only_the_named_bugs_are_hunted(tmp_path):
    planted = write_index(tmp_path, {"id": "a"}, {"id": "b"}, {"id": "c"})
    assert [bug.id for bug in read_index(planted, frozenset({"c", "a"}))] == ["a", "c"]


def test_without_an_index_every_python_file_is_a_bug(tmp_path):
    for name in ("b.py", "a.py", "README.md"):
        (tmp_path / name).touch()
    assert read_index(tmp_path) == [PlantedBug("a"), PlantedBug("b")]
    assert mutants(tmp_path) == tmp_path


def test_what_cannot_be_hunted_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"INDEX\.json"):
        read_index(tmp_path)
    with pytest.raises(UsageError, match="has no z"):
        read_index(write_index(tmp_path, {"id": "a"}), frozenset({"z"}))


def test_a_bug_that_does_not_apply_counts_neither_as_found_nor_as_missed():
    counted = totals([row(FOUND), row(MISSED), row(NOT_APPLICABLE), row("needs 8 ranks")])
    assert (counted["found"], counted["total"]) == (1, 2)
    assert (counted["not_applicable"], counted["needs_ranks"]) == (1, 1)


def test_a_script_that_shows_nothing_stands_out():
    assert "SCRIPT WRONG" in row_line(row(FOUND, script_ok=False))
    assert "script ok" in row_line(row(FOUND, script_ok=True))


def hunted(seed, cases=None, name="bug"):
    """A hunt that found the bug after so many cases, or missed it."""
    outcome = MISSED if cases is None else FOUND
    return msgspec.structs.replace(row(outcome, seed=seed, cases=cases or 500), id=name)


def test_a_missed_bug_counts_as_more_cases_than_any():
    rows = [hunted(0, 10), hunted(1), hunted(2, 30)]
    assert cases_to_find(rows) == 30
    assert cases_to_find([*rows, hunted(3), hunted(4)]) == math.inf


def test_a_bug_found_in_one_of_three_repeats_is_named():
    rows = [hunted(0, 10), hunted(1), hunted(2)]
    rows += [hunted(0, 10, "other"), hunted(1, 5, "other"), hunted(2, name="other")]
    assert rarely_found(rows, 3) == ["bug"]


def test_what_hunts_took_stands_by_difficulty():
    table = difficulties_table([hunted(0, 10), hunted(1)])
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns["difficulty"] == ["easy", "all"]
    assert columns["found"] == ["1/2"] * 2


def test_signatures_are_counted_by_bug_and_bugs_by_signature():
    def shows(name, **counts):
        return Row(id=name, difficulty="", outcome=FOUND, found=True, signatures=counts)

    rows = [shows("a", wrong=2, missing=1), shows("a", wrong=1), shows("b", wrong=1), row(MISSED)]
    assert bugs_of_signatures(rows) == {"wrong": ["a", "b"], "missing": ["a"]}
    figures = signature_figures(rows)
    assert (figures["findings"], figures["bugs"], figures["signatures"]) == (5, 2, 2)
    assert (figures["mean signatures of a bug"], figures["most bugs of a signature"]) == (1.5, 2)
    assert list(signature_lines(rows)) == ["a: wrong (3), missing (1)", "wrong: a, b"]
    assert signature_figures([row(MISSED)]) == {}
