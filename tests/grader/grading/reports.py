"""A graded lab for people and for machines: text, JSON, JUnit's XML, Gradescope's results.json."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from minitrain.lab.grading.results import CheckResult, Report
from minitrain.words import plural, points_text, printable, score_text

SIGNS = {
    "passed": ("pass", "green"),
    "failed": ("fail", "red"),
    "error": ("error", "red"),
    "not attempted": ("to do", "yellow"),
    "withheld": ("held", "yellow"),
}


def text(report: Report, title: str) -> RenderableType:
    """A table of the checks, and under it every message."""
    table = Table(
        title=Text(printable(title)),
        title_justify="left",
        box=None,
        padding=(0, 1),
        show_header=False,
    )
    for side in ("left", "left", "right"):
        table.add_column(justify=side)
    previous = CheckResult("", "", 0, 0, "")
    for result in report.checks:
        if result.exercise != previous.exercise:
            table.add_row("", Text(result.exercise, style="bold"), "")
        is_told = (result.exercise, result.message) == (previous.exercise, previous.message)
        sign, colour = SIGNS[result.status]
        earned = f"{points_text(result.points)}/{points_text(result.max_points)}"
        table.add_row(Text(sign, style=colour), _described(result, is_told), earned)
        previous = result
    total = score_text(report.score, report.max_score)
    lines = [Text(total, style="bold")]
    lines += [Text(f"ask about {line}", style="yellow") for line in doubt_lines(report)]
    if report.warning:
        lines.append(Text(f"warning: {report.warning}", style="red"))
    return Group(table, *(Padding(line, (0, 1)) for line in lines))


def doubt_lines(report: Report) -> list[str]:
    """A line for each table that an instructor should ask about."""
    return [f"{name}: {words}" for name, words in report.doubts.items()]


def print_text(report: Report, title: str) -> None:
    """Prints to the terminal, at its full width."""
    Console(soft_wrap=False).print(text(report, title))


def _described(result: CheckResult, is_told: bool) -> RenderableType:
    """The check, with its message unless the previous line had the same."""
    if not result.message or is_told:
        return Text(result.check)
    return Group(Text(result.check), Padding(Text(result.message, style="dim"), (0, 0, 0, 2)))


def as_json(reports: Sequence[Report]) -> str:
    """One report as an object, several as a list of them."""
    plain = [report.as_dict() for report in reports]
    return json.dumps(plain[0] if len(plain) == 1 else plain, indent=1, ensure_ascii=False)


def as_junit(reports: Sequence[Report]) -> str:
    """One testsuite per lab, one testcase per check; skipped if not attempted or withheld."""
    root = ET.Element("testsuites")
    for report in reports:
        found = Counter(result.status for result in report.checks)
        attributes = {
            "name": report.lab,
            "file": report.file,
            "tests": str(len(report.checks)),
            "failures": str(found["failed"]),
            "errors": str(found["error"]),
            "skipped": str(found["not attempted"] + found["withheld"]),
        }
        suite = ET.SubElement(root, "testsuite", attributes)
        notes = [("warning", report.warning)] if report.warning else []
        notes += [("ask about", line) for line in doubt_lines(report)]
        properties = ET.SubElement(suite, "properties") if notes else suite
        for name, value in notes:
            ET.SubElement(properties, "property", {"name": name, "value": value})
        for result in report.checks:
            _testcase(suite, report.lab, result)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _testcase(suite: ET.Element, lab: str, result: CheckResult) -> None:
    name = f"{result.check} ({plural(result.max_points, 'point')})"
    case = ET.SubElement(suite, "testcase", {"classname": f"{lab}.{result.exercise}", "name": name})
    tags = {
        "failed": "failure", "error": "error", "not attempted": "skipped", "withheld": "skipped",
    }  # fmt: skip
    if result.status in tags:
        failure = ET.SubElement(case, tags[result.status])
        failure.text = result.message
        failure.set("message", result.message.split("\n")[0])


def as_gradescope(reports: Sequence[Report]) -> str:
    """Gradescope's results.json: one test per check, visible to the student; doubts visible to
    instructors."""
    tests = [
        {
            "name": f"{result.exercise}: {result.check}",
            "score": result.points,
            "max_score": result.max_points,
            "status": "passed" if result.status == "passed" else "failed",
            "output": result.message,
            "output_format": "text",
            "visibility": "visible",
        }
        for report in reports
        for result in report.checks
    ]
    tests += [_hidden(line) for report in reports for line in doubt_lines(report)]
    score = sum(report.score for report in reports)
    warnings = {f"warning: {report.warning}\n" for report in reports if report.warning}
    whole = {"score": score, "output": "".join(warnings), "output_format": "text"}
    return json.dumps({**whole, "tests": tests}, indent=1)


def _hidden(line: str) -> dict[str, Any]:
    """A test worth nothing that only instructors see."""
    points = {"score": 0, "max_score": 0}
    words = {"name": "ask about", "output": line, "output_format": "text"}
    return {**words, **points, "visibility": "hidden"}
