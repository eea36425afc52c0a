from __future__ import annotations

import pytest
from fake_campaign import no_shrinking


@pytest.fixture(autouse=True)
def _no_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests are not about shrinking; those that are put their own in its place."""
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", no_shrinking)
