"""Looking at a known finding again: it passes although its cause is there, so is it fixed?"""

from __future__ import annotations

from fuzzshard.campaign.events import Event, FindingGone
from fuzzshard.campaign.judge import Runner, confirm
from fuzzshard.campaign.known import Known, Registry
from fuzzshard.campaign.quarantine import Quarantine
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.verdict import Verdict


def revisit(
    world: Runner, known: Known, entry: CorpusEntry, registry: Registry, quarantine: Quarantine
) -> list[Event]:
    """Runs the own case of ``known`` on fresh ranks; says what that ends.

    One run that shows the finding is enough. Where it stays away, as many follow as for any flaky finding.
    """
    expected = Verdict(status=entry.status, findings=entry.findings)
    seen = confirm(world, entry.case, expected, runs=1, elsewhere=known.elsewhere)
    if seen.reproduced:
        return quarantine.still_there(known)
    if not seen.runs:
        quarantine.unclear(known)
        return []
    registry.forget(known)
    return [
        FindingGone(
            signature=known.signature, path=str(known.path), runs=seen.runs, observed=tuple(seen.others)
        )
    ]
