"""Campaigns and checks as JUnit XML, which CI systems show as tests.

The elements and attributes are those that Jenkins and GitLab read
(https://github.com/testmoapp/junitxml, https://docs.gitlab.com/ci/testing/unit_test_reports/).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree import ElementTree

from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import replay_command
from fuzzshard.errors import EXIT_INFRA
from fuzzshard.report.node import CampaignNode
from fuzzshard.report.seen_findings import SeenFinding
from fuzzshard.report.show import drawn_findings
from fuzzshard.report.stages import counted
from fuzzshard.report.stats import Stats
from fuzzshard.report.status import status_lines
from fuzzshard.subject.report import TrainingReport

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document may have, escaped or not: a rank's output may have any."""

_Element = ElementTree.Element


def junit_xml(
    nodes: Sequence[CampaignNode], stats: Stats, findings: Sequence[SeenFinding]
) -> bytes:
    """A test suite: a test for the campaign, which errs where it failed, and a failing one for
    each finding.

    What did not come back, what nobody will fix and what the corpus had before is skipped.
    """
    first = next((node.sessions[0] for node in nodes if node.sessions), None)
    campaign = [_campaign(nodes, stats, findings)] if first is not None else []
    cases = [*campaign, *map(_finding, findings)]
    where: dict[str, str] = {}
    if first is not None:
        began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(first.started))
        where = {"timestamp": began, "hostname": first.host}
    return _document(cases, stats.seconds, where, _properties(nodes))


def checks_xml(reports: Sequence[TrainingReport]) -> bytes:
    """A test suite of the trainings of a check, each a test: one that is not judged is skipped."""
    cases = [
        _Element(
            "testcase", classname="fuzzshard.check", name=r.training.label, time=f"{r.seconds:.3f}"
        )
        for r in reports
    ]
    for case, report in zip(cases, reports, strict=True):
        text = _plain("\n".join(report.lines()))
        if report.is_finding:
            kind, message = _plain(report.signature), _plain(report.result)
            failure = ElementTree.SubElement(case, "failure", type=kind, message=message)
            failure.text = text
        elif report.outcome == "not judged":
            ElementTree.SubElement(case, "skipped", message=_plain(report.message))
        else:
            ElementTree.SubElement(case, "system-out").text = text
    return _document(cases, sum(report.seconds for report in reports), {}, ())


def _document(
    cases: Sequence[_Element],
    seconds: float,
    where: Mapping[str, str],
    told: Iterable[tuple[str, str]],
) -> bytes:
    """A document of one suite; ``told`` are its properties."""
    totals = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": f"{seconds:.3f}",
    }
    suite = _Element("testsuite", {"name": "fuzzshard", **totals, **where})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in told:
        ElementTree.SubElement(properties, "property", name=name, value=_plain(value))
    suite.extend(cases)
    root = _Element("testsuites", {"name": "fuzzshard", **totals})
    root.append(suite)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _campaign(
    nodes: Sequence[CampaignNode], stats: Stats, findings: Sequence[SeenFinding]
) -> _Element:
    case = _Element(
        "testcase", classname="fuzzshard", name="campaign", time=f"{stats.seconds:.3f}"
    )
    if stats.exit_code == EXIT_INFRA or stats.state == "killed" or not stats.cases:
        reason = stats.reason or (
            "it was killed" if stats.state == "killed" else "no case was judged"
        )
        ElementTree.SubElement(case, "error", type=stats.state, message=_plain(reason))
    lines = "\n".join(status_lines(nodes, stats, findings))
    ElementTree.SubElement(case, "system-out").text = _plain(lines)
    return case


def _finding(finding: SeenFinding) -> _Element:
    case = _Element(
        "testcase",
        classname=_plain(f"fuzzshard.{finding.signature.replace('/', '.')}"),
        name=_plain(finding.folder.name),
        time="0.000",
    )
    if not finding.confirmed or finding.status == Lifecycle.WONTFIX:
        ElementTree.SubElement(case, "skipped", message=finding.status)
        return case
    if not finding.new and finding.status != Lifecycle.FIXED:
        ElementTree.SubElement(case, "skipped", message=f"known, {finding.status}")
        return case
    rate = f", {finding.rate.text()}" if finding.rate else ""
    message = _plain(f"{finding.signature}{rate}, {counted(finding.hits, 'case')}")
    failure = ElementTree.SubElement(
        case, "failure", type=_plain(finding.signature), message=message
    )
    failure.text = _plain("\n".join(_details(finding)))
    return case


def _details(finding: SeenFinding) -> Iterator[str]:
    if (entry := finding.entry) is not None:
        yield drawn_findings(entry.findings)
        yield replay_command(finding.folder, entry)
        if entry.issue:
            yield entry.issue
    yield str(finding.folder)


def _properties(nodes: Sequence[CampaignNode]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        yield "directory", str(node.path)
        if (session := node.last) is not None:
            yield "seed", str(session.seed)
            yield "fuzzshard", session.version
            yield from (session.info or {}).items()


def _plain(text: str) -> str:
    return _NOT_XML.sub("�", text)
