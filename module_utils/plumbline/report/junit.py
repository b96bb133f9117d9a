"""The report as JUnit XML, which every CI system shows: a suite for each host, a case for each check."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from ..gates import FAILING, SKIPPED, WARN
from .model import Check, Host, Report

# What XML 1.0 cannot hold, not even escaped.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """Return the report as JUnit XML: SKIPPED is skipped, CRITICAL and UNKNOWN fail, a WARN passes with its output."""
    root = ElementTree.Element("testsuites", name=_clean(f"plumbline {report.run}"))
    suites = [_suite(root, host) for host in report.hosts]
    for key in ("tests", "failures", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.set("errors", "0")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, host: Host) -> ElementTree.Element:
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(host.name), errors="0")
    for check in host.checks:
        _case(suite, host, check)
    for failure in host.failures:
        name = "the host can be reached" if failure.unreachable else failure.task or "the run"
        case = ElementTree.SubElement(
            suite, "testcase", classname=_clean(f"{host.name}.{failure.stage}"), name=_clean(name)
        )
        _failure(case, "CRITICAL", failure.message, failure.message)
    for problem in host.problems:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_clean(f"{host.name}.evidence"), name=_clean(problem)
        )
        _failure(case, "UNKNOWN", problem, problem)
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("time", f"{sum(stage.seconds for stage in host.stages.values()):.3f}")
    return suite


def _case(suite: ElementTree.Element, host: Host, check: Check) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_clean(f"{host.name}.{check.stage}"),
        name=_clean(f"{check.name} ({check.scope})"),
        time="0",
    )
    if check.status == SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_clean(str(check.reason)))
    elif check.status in FAILING:
        text = [str(check.reason)]
        text += [f"Probable cause: {check.cause}"] if check.cause else []
        text += [f"Next: {check.next_command}"] if check.next_command else []
        _failure(case, check.status, str(check.reason), "\n".join(text))
    else:
        output = ElementTree.SubElement(case, "system-out")
        output.text = _clean(f"{WARN}: {check.reason}" if check.status == WARN else str(check.reason))


def _failure(case: ElementTree.Element, kind: str, message: str, text: str) -> None:
    element = ElementTree.SubElement(case, "failure", type=kind, message=_clean(message))
    element.text = _clean(text)


def _clean(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)
