"""``fuzzshard features``: what cases can have, and how often they do."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from cyclopts import Parameter, validators

from fuzzshard.analysis.feature_names import DIMENSIONS, FEATURES
from fuzzshard.analysis.feature_words import check_glob, dimension_of, matching
from fuzzshard.errors import EXIT_CLEAN
from fuzzshard.options import Json

_WIDTH = 99
_SEED = 1


def features(
    *globs: str,
    shares: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 0,
    world_size: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 4,
    as_json: Json = False,
) -> int:
    """List the features that cases can have, with what each means.

    fuzzshard run takes these names in --only, --exclude and --require. A name is
    DIMENSION:FEATURE.

    For example:
      fuzzshard features
      fuzzshard features 'mesh:*' 'precision:*'
      fuzzshard features '*hook*' --shares 1000

    Parameters
    ----------
    globs
        Only features that match one of them, such as 'checkpoint:*'.
    shares
        Draw so many cases for CPU ranks, and say what share of them has each feature. 1000 take
        some seconds.
    world_size
        RankOptions that these cases are for.
    as_json
        Print one JSON object for each feature.
    """
    for glob in globs:
        check_glob(glob, glob)
    listed = [f for f in FEATURES if f in matching("|".join(globs or ("*",)))]
    percent = _percent(shares, world_size) if shares else {}
    if as_json:
        for feature in listed:
            row = {
                "name": feature,
                "dimension": dimension_of(feature),
                "meaning": FEATURES[feature],
            }
            print(msgspec.json.encode({**row, "percent": percent.get(feature)}).decode())
    else:
        print(*_lines(listed, percent), sep="\n")
    return EXIT_CLEAN


def _percent(count: int, world_size: int) -> Mapping[str, float]:
    """Count how many of a hundred drawn cases have each feature."""
    from fuzzshard.analysis.features import features as features_of
    from fuzzshard.strategies import draw_cases

    cases = draw_cases(_SEED, count, world_size=world_size)
    counts = Counter(feature for case in cases for feature in features_of(case))
    return {feature: round(100 * counts[feature] / count, 2) for feature in FEATURES}


def _lines(listed: list[str], percent: Mapping[str, float]) -> Iterator[str]:
    """Yield a paragraph for each dimension: its features in columns."""
    longest = max(map(len, listed))
    separator = ""
    by_dimension = sorted(listed, key=_place)
    for dimension, group in itertools.groupby(by_dimension, dimension_of):
        yield f"{separator}{dimension}: {DIMENSIONS[dimension]}"
        separator = "\n"
        for feature in group:
            share = f"{percent[feature]:5.1f} %  " if percent else ""
            head = f"  {feature:{longest}}  {share}"
            yield from textwrap.wrap(
                FEATURES[feature], _WIDTH, initial_indent=head, subsequent_indent=" " * len(head)
            )


def _place(feature: str) -> int:
    return [*DIMENSIONS].index(dimension_of(feature))
