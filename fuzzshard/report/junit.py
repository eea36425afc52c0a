"""Checks as JUnit XML, which CI systems show as tests.

The elements and attributes are those that Jenkins and GitLab read
(https://github.com/testmoapp/junitxml, https://docs.gitlab.com/ci/testing/unit_test_reports/).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from fuzzshard.subject.report import TrainingReport

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document may have, escaped or not: a rank's output may have any."""

_Element = ElementTree.Element


def checks_xml(reports: Sequence[TrainingReport]) -> bytes:
    """Return a test suite with a test for each training; what is not judged is skipped."""
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
    return _document(cases, sum(report.seconds for report in reports))


def _document(cases: Sequence[_Element], seconds: float) -> bytes:
    """Return a document of one suite."""
    totals = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": f"{seconds:.3f}",
    }
    suite = _Element("testsuite", {"name": "fuzzshard", **totals})
    suite.extend(cases)
    root = _Element("testsuites", {"name": "fuzzshard", **totals})
    root.append(suite)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _plain(text: str) -> str:
    return _NOT_XML.sub("�", text)
