"""The forms of a report: text, JSON, JUnit, Gradescope."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from minitrain.lab.grading import reports
from minitrain.lab.grading.grade import CheckResult, Report
from minitrain.paths import write_atomically

REPORT = Report(
    "t00_tiny",
    (
        CheckResult("double", "twice", 1.5, 1.5, "passed"),
        CheckResult("double", "integers", 0.0, 1.0, "failed", "got [1], expected [2]\nthis is x <&> \x00\x1b[31m"),
        CheckResult("ring", "the sum", 0.0, 2.0, "not attempted", "not filled in yet"),
        CheckResult("ring", "the bytes", 0.0, 2.0, "not attempted", "not filled in yet"),
        CheckResult("most", "as the table says", 0.0, 1.0, "error", "what came back is not …"),
    ),
)  # fmt: skip


def test_the_text_has_every_message_once():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(reports.text(REPORT, "t00_tiny: ada.ipynb"))
    text = console.export_text()
    assert "1.5 of 7.5 points" in text and "got [1], expected [2]" in text
    assert text.count("not filled in yet") == 1


def test_json_is_the_contract():
    plain = json.loads(reports.as_json([REPORT]))
    assert plain["lab"] == "t00_tiny" and plain["score"] == 1.5 and plain["max_score"] == 7.5
    assert plain["checks"][1] == {
        "exercise": "double",
        "check": "integers",
        "points": 0.0,
        "max_points": 1.0,
        "status": "failed",
        "message": REPORT.checks[1].message,
    }
    assert [p["lab"] for p in json.loads(reports.as_json([REPORT, REPORT]))] == ["t00_tiny"] * 2


def test_junit_is_xml_whatever_a_message_holds():
    (suite,) = ET.fromstring(reports.as_junit([REPORT]))
    assert suite.attrib == {
        "name": "t00_tiny",
        "tests": "5",
        "failures": "1",
        "errors": "1",
        "skipped": "2",
    }
    tags = [[child.tag for child in case] for case in suite]
    assert tags == [[], ["failure"], ["skipped"], ["skipped"], ["error"]]
    assert suite[1][0].text.startswith("got [1], expected [2]\nthis is x <&> ")


def test_gradescope_has_a_test_a_check():
    plain = json.loads(reports.as_gradescope([REPORT]))
    assert plain["score"] == 1.5 and len(plain["tests"]) == 5
    assert plain["tests"][0] | {"output": ""} == plain["tests"][0]
    assert {test["status"] for test in plain["tests"]} == {"passed", "failed"}
    assert all(test["score"] <= test["max_score"] for test in plain["tests"])


def test_a_file_is_replaced_at_once(tmp_path, monkeypatch):
    path = tmp_path / "new" / "results.json"
    write_atomically(path, "first")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(path, "second")
    assert path.read_text() == "first"
