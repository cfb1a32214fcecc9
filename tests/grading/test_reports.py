"""The forms of a report: text, JSON, JUnit, Gradescope."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from minitrain.lab.grading import reports
from minitrain.lab.grading.collect import Entry
from minitrain.lab.grading.results import CheckResult, Report
from minitrain.lab.grading.rows import failed, finished, graded
from minitrain.lab.grading.summary import summary
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
        "file": "",
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


DOUBTFUL = replace(
    REPORT,
    checks=(*REPORT.checks, CheckResult("scaling", "grows", 0.0, 1.0, "withheld", "withheld: why")),
    warning="not isolated",
    doubts={"scaling": "all 5 numbers are equal"},
)


def test_every_form_says_what_to_ask_about_and_that_it_was_not_isolated():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(reports.text(DOUBTFUL, "t00_tiny: ada.ipynb"))
    *_, doubt, warning = console.export_text().strip().splitlines()
    assert doubt.strip() == "ask about scaling: all 5 numbers are equal"
    assert warning.strip() == "warning: not isolated"

    plain = json.loads(reports.as_json([DOUBTFUL]))
    assert plain["doubts"] == DOUBTFUL.doubts and plain["warning"] == "not isolated"

    (suite,) = ET.fromstring(reports.as_junit([DOUBTFUL]))
    notes = [(note.get("name"), note.get("value")) for note in suite.find("properties")]
    ask = ("ask about", "scaling: all 5 numbers are equal")
    assert notes == [("warning", "not isolated"), ask]
    assert suite.get("skipped") == "3" and suite.findall("testcase")[-1].find("skipped") is not None

    plain = json.loads(reports.as_gradescope([DOUBTFUL]))
    assert plain["output"] == "warning: not isolated\n"
    *shown, told = plain["tests"]
    assert told["visibility"] == "hidden" and told["output"] == ask[1] and told["max_score"] == 0
    assert all(ask[1] not in json.dumps(test) for test in shown), "the student is not accused"


def test_the_row_of_a_class_says_it_too():
    entry = Entry("ada", "t00_tiny", Path("ada.ipynb"))
    (row,) = finished([graded(entry, DOUBTFUL, "x")])
    assert row.doubts == "scaling: all 5 numbers are equal"
    assert row.remarks.startswith("not isolated") and row.score == "1.5"


def test_reports_of_two_students_are_told_apart():
    both = [replace(REPORT, file=name) for name in ("ada/t00.ipynb", "b\x1b[31mob/t00.ipynb")]
    names = ["ada/t00.ipynb", "b[31mob/t00.ipynb"]
    assert [plain["file"] for plain in json.loads(reports.as_json(both))] == names
    assert [suite.get("file") for suite in ET.fromstring(reports.as_junit(both))] == names


def test_a_class_at_a_glance():
    entry, done = Entry("ada", "t00_tiny", Path("ada.ipynb")), replace(REPORT.checks[1], points=1.0)
    better = replace(REPORT, checks=(REPORT.checks[0], done, *REPORT.checks[2:]))
    rows = finished([graded(entry, report, "x") for report in (REPORT, better)])
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(summary([*rows, failed(entry, "is a link", "")]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[0] == ["t00_tiny:", "2", "files,", "mean", "2.0", "of", "7.5"]
    assert ["double", "2.0", "2.5", "1", "0", "0.5", "lost"] in lines
    assert ["ring", "0.0", "4", "0", "2", "4.0", "lost"] in lines


def test_a_file_is_replaced_at_once(tmp_path, monkeypatch):
    path = tmp_path / "new" / "results.json"
    write_atomically(path, "first")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(path, "second")
    assert path.read_text() == "first"
