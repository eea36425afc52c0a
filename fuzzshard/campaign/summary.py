"""What a campaign amounts to in the end."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from pathlib import Path

from fuzzshard.campaign.known import Known, Registry
from fuzzshard.campaign.tally import Tally
from fuzzshard.case.features import ALL_FEATURES
from fuzzshard.corpus.lifecycle import release
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE, EXIT_INFRA
from fuzzshard.events import CampaignFinished, KnownFinding
from fuzzshard.verdict import Status


def summarize(
    tally: Tally,
    registry: Registry,
    *,
    seed: int,
    corpus: Path,
    mends: str,
    elapsed: float,
    reason: str,
    exit_code: int,
    complete: bool,
) -> CampaignFinished:
    """The last event, with all sessions of the campaign in it."""
    cases, causes = tally.cases, registry.causes
    return CampaignFinished(
        elapsed=elapsed,
        reason=reason,
        exit_code=exit_code,
        seed=seed,
        corpus=str(corpus),
        mends=mends,
        torch=release(importlib.metadata.version("torch")),
        cases=cases,
        cases_per_second=cases / elapsed,
        counts=dict(tally.counts),
        findings=tuple(_line(known) for known in _listed(registry)),
        explained=registry.explained,
        causes=dict(causes.most_common()),
        examples=_examples(registry, causes),
        unresolved=tuple(map(str, registry.unresolved)),
        suspects=tuple(map(str, registry.suspects)),
        refusals=tuple(tally.refusals.most_common()),
        features_seen=len(tally.features),
        features_total=len(ALL_FEATURES),
        features_unseen=tuple(sorted(set(ALL_FEATURES) - tally.features)),
        complete=complete,
    )


def _examples(registry: Registry, causes: Collection[str]) -> dict[str, str]:
    """The smallest entries of the ``causes`` that were met; without any, the smallest of all."""
    smallest = {cause: min(entries) for cause, entries in registry.examples.items()}
    if not causes and smallest:
        causes = (min(smallest, key=smallest.__getitem__),)
    return {cause: str(smallest[cause][1]) for cause in causes if cause in smallest}


def _listed(registry: Registry) -> list[Known]:
    """What this campaign has met of the findings that are done; internal ones come last."""
    left = set(registry.unresolved)
    met = [
        known
        for known in registry.all()
        if (known.hits or not known.saved_before) and known.path not in left
    ]
    return sorted(met, key=lambda known: known.internal)


def _line(known: Known) -> KnownFinding:
    return KnownFinding(
        signature=known.signature,
        path=str(known.path),
        hits=known.hits,
        new=not known.saved_before,
        internal=known.internal,
        rate=known.confirmed.text() if known.confirmed.flaky else "",
    )


def verdict_code(tally: Tally, registry: Registry) -> int:
    """The exit code of a campaign that was neither interrupted nor stopped by an error.

    What the corpus had before is no news: a campaign in CI would be red on every torch with an
    open finding.
    """
    if registry.has_news:
        return EXIT_FINDING
    if tally.cases and tally.counts[Status.INFRA] == tally.cases:
        return EXIT_INFRA
    if not tally.cases or registry.num_flaky or tally.counts[Status.INCONCLUSIVE]:
        return EXIT_INCONCLUSIVE
    return EXIT_CLEAN
