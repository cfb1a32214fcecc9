"""Cards and tables: the text says what the HTML says, and nothing a learner wrote runs as HTML."""

from __future__ import annotations

from types import SimpleNamespace

from minitrain.lab.drawing import cards
from minitrain.lab.drawing.card import Card, Line
from minitrain.lab.drawing.display import Rich
from minitrain.lab.grading.submission import RECORDED


def result(status: str = "passed", points: float = 2.0, message: str = "") -> SimpleNamespace:
    return SimpleNamespace(
        check="equals the sum", points=points, max_points=2.0, status=status, message=message
    )


def test_a_failure_shows_its_words_and_the_points():
    card = cards.grade_card("Ring", [result(), result("failed", 0.0, "got 3, expected 6")])
    for shown in (card.html, card.text):
        assert "2 of 4 points" in shown and "got 3, expected 6" in shown
    assert "not yet" in card.text and card.value == "2.0"


def test_what_several_checks_say_is_said_once():
    raised = result("failed", 0.0, "rank 0 raised")
    same = [raised, result(), raised]
    card = cards.grade_card("Ring", same)
    for shown in (card.html, card.text):
        assert shown.count("rank 0 raised") == 1 and shown.count("As above.") == 1


def test_markup_in_a_message_is_text():
    card = cards.grade_card("Ring", [result("failed", 0.0, "<script>alert(1)</script> & `a<b`")])
    assert "<script>" not in card.html and "&lt;script&gt;" in card.html
    assert "<code>a&lt;b</code>" in card.html
    card = cards.grade_card("Ring", [result("failed", 0.0, "[here](javascript:alert(1))")])
    assert "<a " not in card.html


def test_data_travels_in_its_own_type():
    data = {"kind": "answer", "name": "x", "value": 1}
    bundle = Rich("<b>x</b>", "x", data)._repr_mimebundle_()
    assert bundle == {"text/html": "<b>x</b>", "text/plain": "x", RECORDED: data}
    assert RECORDED not in Rich("<b>x</b>", "x")._repr_mimebundle_()


def test_a_line_is_a_link_a_bar_or_a_badge_in_both_forms():
    lines = [Line("[`e0`](e0.ipynb)", "1/2", "part"), Line("measured", "3 s", share=0.5)]
    card = Card(
        "Your <course>", "1 of 2", share=2.0, lines=lines, note="Next: [e0](e0.ipynb)"
    ).rich()
    assert card.text.splitlines() == [
        "Your <course>: 1 of 2",
        "  part        1/2  `e0` (e0.ipynb)",
        "  measured: 3 s",
        "  Next: e0 (e0.ipynb)",
    ]
    assert '<a href="e0.ipynb"><code>e0</code></a>' in card.html and "&lt;course&gt;" in card.html
    assert "width:100%" in card.html and "width:50%" in card.html
