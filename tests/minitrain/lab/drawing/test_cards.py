"""Cards and tables: the text says what the HTML says, and nothing a learner wrote runs as HTML."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from minitrain.lab.drawing import cards
from minitrain.lab.drawing.display import MIME, Rich, words
from minitrain.words import bytes_text, seconds_text


def result(status: str = "passed", points: float = 2.0, message: str = "") -> SimpleNamespace:
    return SimpleNamespace(
        check="equals the sum", points=points, max_points=2.0, status=status, message=message
    )


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (12e6, "12 MB"),
        (1.234e9, "1.23 GB"),
        (5e18, "5e+03 PB"),
    ],
)
def test_bytes(value, text):
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    "value, text", [(0, "0 s"), (2, "2 s"), (0.0031, "3.1 ms"), (5e-7, "500 ns"), (4.2e-5, "42 µs")]
)
def test_seconds(value, text):
    assert seconds_text(value) == text


def test_a_failure_shows_its_words_and_the_points():
    card = cards.grade_card("Ring", [result(), result("failed", 0.0, "got 3, expected 6")])
    for shown in (card.html, card.text):
        assert "2 of 4 points" in shown and "got 3, expected 6" in shown
    assert "FAIL" in card.text and card.value == "2.0"


def test_what_several_checks_say_is_said_once():
    same = [
        result("failed", 0.0, "rank 0 raised"),
        result(),
        result("failed", 0.0, "rank 0 raised"),
    ]
    card = cards.grade_card("Ring", same)
    for shown in (card.html, card.text):
        assert shown.count("rank 0 raised") == 1 and shown.count("As above.") == 1


def test_full_marks_read_as_such():
    card = cards.grade_card("Ring", [result(), result()])
    assert "4 of 4 points" in card.text and "FAIL" not in card.text and card.value == "4.0"


def test_markup_in_a_message_is_text():
    card = cards.grade_card("Ring", [result("failed", 0.0, "<script>alert(1)</script> & `a<b`")])
    assert "<script>" not in card.html and "&lt;script&gt;" in card.html
    assert "<code>a&lt;b</code>" in card.html


@pytest.mark.parametrize(
    "text, html", [("a `b` c", "a <code>b</code> c"), ("one ` tick", "one ` tick")]
)
def test_backticks_are_code_in_pairs_only(text, html):
    assert words(text) == html


def test_data_travels_in_its_own_type():
    data = {"kind": "answer", "name": "x", "value": 1}
    bundle = Rich("<b>x</b>", "x", data)._repr_mimebundle_()
    assert bundle == {"text/html": "<b>x</b>", "text/plain": "x", MIME: data}
    assert MIME not in Rich("<b>x</b>", "x")._repr_mimebundle_()


def test_nbgrader_finds_the_points_in_text_plain():
    card = cards.grade_card("Ring", [result(), result("failed", 0.0, "no")])
    assert float(card._repr_mimebundle_()["text/plain"]) == 2.0


def test_a_table_aligns_numbers_and_formats_columns(capsys):
    rows = [
        {"ranks": 1, "bytes": 1.2e7, "fabric": "nvlink"},
        {"ranks": 16, "bytes": None, "fabric": "ib"},
    ]
    card = cards.table_card(
        rows, "Measured", "bytes", {"bytes": lambda v: "–" if v is None else bytes_text(v)}
    )
    assert card.text.splitlines() == [
        "Measured",
        "ranks  bytes  fabric",
        "    1  12 MB  nvlink",
        "   16      –  ib",
    ]
    cards.table(rows)
    assert "nvlink" in capsys.readouterr().out
