"""Rules that differ between releases of torch hold where they say, and torch says what they
quote.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fuzzshard.contracts import CONTRACTS, Contract

TORCH = Path(torch.__file__).parent.parent


def rule(since: str = "", until: str = "") -> Contract:
    return Contract(name="x", says="x", quote="x", source="x", since=since, until=until)


@pytest.mark.parametrize(
    ("torch_version", "holds"),
    [
        ("2.13.0+cpu", False),
        ("2.14.1", False),
        ("2.15.0+cu132", True),
        ("2.15.0a0+git1f3a09b", True),
        ("2.15.0.dev20261001", True),
        ("2.16.0", True),
    ],
)
def test_a_rule_holds_from_the_release_that_brought_it(torch_version: str, holds: bool) -> None:
    assert rule(since="2.15").holds(torch_version) is holds
    assert rule(until="2.15").holds(torch_version) is not holds
    assert rule().holds(torch_version)


def test_every_rule_has_a_name_of_its_own_and_differs_between_releases() -> None:
    assert len({contract.name for contract in CONTRACTS}) == len(CONTRACTS)
    assert all(contract.since or contract.until for contract in CONTRACTS)
    assert all(contract.says and contract.quote and contract.source for contract in CONTRACTS)


def words(text: str) -> str:
    """Without what markup, line breaks and the parts of a literal add."""
    text = re.sub(r":\w+:`(?:\w+\.)*(\w+)`", r"\1", text)
    return " ".join(re.sub(r"\bf(?=\")|[`'\"()]", "", text).split())


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_torch_says_what_a_rule_quotes(contract: Contract) -> None:
    if not contract.holds():
        pytest.skip("this release of torch says something else")
    (file,) = set(re.findall(r"torch/[\w/]+\.py", contract.source))
    said = words((TORCH / file).read_text())
    for part in contract.quote.split("[...]"):
        assert words(part) in said
