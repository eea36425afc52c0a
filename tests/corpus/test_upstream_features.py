"""The features that stand for an upstream test are those of one of its cells."""

import pytest
from upstream.catalog import ROWS
from upstream_rows import UPSTREAM_ROWS

from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.analysis.features import features


@pytest.fixture(scope="module")
def cells():
    """The features of the cells of each row."""
    return {row.id: [features(cell.case) for cell in row.cells] for row in ROWS}


def test_every_row_of_the_catalog_has_features(cells):
    assert cells.keys() == UPSTREAM_ROWS.keys()


def test_rows_name_features_that_exist():
    assert frozenset().union(*UPSTREAM_ROWS.values()) <= FEATURES.keys()


@pytest.mark.parametrize("row", UPSTREAM_ROWS)
def test_some_cell_of_a_row_has_all_its_features(cells, row):
    assert any(UPSTREAM_ROWS[row] <= present for present in cells[row])
