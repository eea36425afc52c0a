"""What a campaign says about one finding: the events for it, from what is known of it."""

from __future__ import annotations

from pathlib import Path

from fuzzshard.campaign.known import Found
from fuzzshard.campaign.reduce import Judged
from fuzzshard.case.order import leaf_count
from fuzzshard.corpus.store import SCRIPT_FILE
from fuzzshard.events import FindingFlaky, FindingFound, FindingSaved
from fuzzshard.verdict import Finding


def finding_found(found: Found) -> FindingFound:
    """A finding is saved as it was found."""
    return FindingFound(
        index=found.index,
        status=found.verdict.status,
        signature=found.verdict.signature,
        summary=_describe(found.verdict.findings[0]),
        path=str(found.path),
    )


def finding_flaky(signature: str, judged: Judged, path: Path) -> FindingFlaky:
    """A finding did not come back, and was set aside at ``path``."""
    return FindingFlaky(
        signature=signature,
        runs=judged.confirmation.runs,
        observed=tuple(judged.confirmation.others),
        path=str(path),
    )


def finding_saved(
    found: Found,
    judged: Judged,
    path: Path,
    replay: str,
    script_fails: bool | None,
    *,
    duplicate: bool = False,
) -> FindingSaved:
    """A finding is confirmed, and what it was shrunk to is saved at ``path``."""
    return FindingSaved(
        signature=judged.verdict.signature,
        path=str(path),
        replay_command=replay,
        script=str(path / SCRIPT_FILE),
        script_fails=script_fails,
        leaves_before=leaf_count(found.case),
        leaves_after=leaf_count(judged.case),
        runs=judged.confirmation.runs,
        reproduced=judged.confirmation.reproduced,
        others=judged.confirmation.others,
        shrink_evaluations=judged.evaluations,
        shrink_finished=judged.finished,
        duplicate=duplicate,
        note=judged.note,
    )


def _describe(finding: Finding) -> str:
    """One line: what was observed where, and what was expected."""
    where = f" of {finding.name}" if finding.name else ""
    when = f" at op {finding.op}" if finding.op >= 0 else ""
    return (
        f"{finding.engine}: {finding.oracle}{where}{when}: {finding.observed}, expected "
        f"{finding.expected}"
    )
