"""What a figure says of itself: the numbers that it shows."""

from __future__ import annotations

from minitrain.lab.drawing.alt_text import alt_text
from minitrain.lab.drawing.charts import bars, spent
from minitrain.lab.drawing.expert_load import draw_load
from minitrain.lab.drawing.figures import canvas, lines


def said(draw) -> str:
    with canvas() as (fig, ax):
        draw(ax)
        return alt_text(fig)


def test_lines_with_few_points_and_with_many():
    few = ([1, 2, 4], [0.5, 0.25, 2000.0])
    many = (range(10), [5, 9, 4, 3, 2, 1, 2, 3, 4, 4.5])
    text = said(
        lambda ax: lines(
            {"ring": few, "tree": many},
            theory={"floor": ([0, 9], [1, 1])},
            x="size (MB)",
            y="time (s)",
            title="All-reduce",
            ax=ax,
        )
    )
    assert text == (
        "All-reduce. time (s) against size (MB): ring: 0.5 at 1, 0.25 at 2, 2,000 at 4; "
        "tree: from 5.0 at 0 to 4.5 at 9, highest 9.0 at 1, lowest 1.0 at 5; floor: level at 1."
    )


def test_bars_alone_in_groups_and_predicted():
    text = said(lambda ax: bars(["a\nb", "c"], [1.5, 2], theory=[1, 2], y="MB", ax=ax))
    assert text == "MB: a b 1.5, c 2.0; predicted: 1, 2."
    text = said(lambda ax: bars(["a", "c"], [1.5, 2.5], errors=[0.1, 0.2], y="MB", ax=ax))
    assert text == "MB: a 1.5, c 2.5."
    groups = {"measured": [1, 2], "counted": [3, 4]}
    text = said(lambda ax: bars(["a", "c"], groups, x="way", y="MB", ax=ax))
    assert text == "MB against way: measured: a 1, c 2; counted: a 3, c 4."


def test_a_painter_that_has_words_is_quoted():
    assert said(lambda ax: draw_load([3, 1], ax=ax)).startswith(
        "Bars of the choices that each expert got"
    )


def test_a_timeline_sums_each_lane():
    spans = [
        ("rank 0", 0, 2, "computes"),
        ("rank 0", 2, 2.5, "waits"),
        ("rank 0", 3, 4, "computes"),
    ]
    assert spent(spans) == "Timeline: rank 0: computes 3 ms, waits 0.5 ms."
