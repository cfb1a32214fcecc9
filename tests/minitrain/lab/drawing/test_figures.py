"""Figures: alt text always, white face, direct labels that do not overlap, no global settings."""

from __future__ import annotations

import base64
import io
import re
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from PIL import Image

from minitrain.errors import InputError
from minitrain.lab import widgets
from minitrain.lab.drawing.alt_text import alt_text
from minitrain.lab.drawing.charts import bars, spent, timeline
from minitrain.lab.drawing.colors import READABLE, contrast
from minitrain.lab.drawing.expert_load import capacity, skewed_load, summary
from minitrain.lab.drawing.figures import canvas, label_ends, lines, picture
from minitrain.lab.drawing.glyphs import GLYPHS, Pen
from minitrain.lab.drawing.shapes import bare
from minitrain.lab.grading.collect import lab_names

ALT = "Time against message size: it rises in proportion"


def test_alt_text_and_white_face():
    with canvas() as (fig, ax):
        lines({"ring": ([1, 2], [1, 2])}, x="size (B)", y="time (s)", ax=ax)
        rich = picture(fig, ALT, "caption <b>")
    assert f'alt="{ALT}"' in rich.html and "caption &lt;b&gt;" in rich.html
    png = base64.b64decode(re.search(r"base64,([^\"]+)", rich.html)[1])
    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    assert (image[0, 0] == 255).all() and (image[-1, -1] == 255).all()
    assert abs(image.shape[1] / image.shape[0] - 1.5) < 0.02
    assert rich.text == f"[figure: {ALT}]\ncaption <b>"


@pytest.mark.parametrize("alt", ["", "a plot", "loss"])
def test_a_figure_without_words_is_refused(alt):
    with pytest.raises(InputError, match="alt text"), canvas() as (fig, _):
        picture(fig, alt)


def test_settings_do_not_leak():
    before = dict(matplotlib.rcParams)
    with canvas():
        assert matplotlib.rcParams["axes.grid"]
    assert dict(matplotlib.rcParams) == before


def test_labels_at_equal_ends_are_moved_apart():
    with canvas() as (_, ax):
        ax.plot([0, 1], [0, 1])
        label_ends(ax, [(name, "black", 1, 1.0) for name in ("one", "two", "three")])
        shifts = sorted(text.xyann[1] for text in ax.texts)
    assert min(b - a for a, b in pairwise(shifts)) >= 9


def test_words_in_the_colour_of_a_series_are_dark_enough_to_read():
    with canvas() as (fig, ax):
        lines({str(i): ([1, 2], [i, i]) for i in range(7)}, x="x", y="y", labels="direct", ax=ax)
        picture(fig, "seven level lines, one above the other")
        assert min(contrast("white", text.get_color()) for text in ax.texts) >= READABLE
        assert len({str(text.get_color()) for text in ax.texts}) == 7


def test_bars_of_the_wrong_number_and_an_empty_timeline_are_told():
    with pytest.raises(InputError, match="2 values for 1 names"):
        bars(["a"], [1, 2], y="s", alt=ALT)
    with pytest.raises(InputError, match="no spans"):
        timeline([], alt=ALT)


def test_a_timeline_has_a_lane_a_row_and_a_colour_a_kind():
    spans = [("rank 0", 0, 2, "forward"), ("rank 1", 1, 3, "forward"), ("rank 0", 2, 5, "backward")]
    with canvas() as (_, ax):
        timeline(spans, ax=ax)
        assert [tick.get_text() for tick in ax.get_yticklabels()] == ["rank 0", "rank 1"]
        assert ax.get_ylim()[0] > ax.get_ylim()[1], "lanes run from the top"
        colors = [bar.get_facecolor() for bar in ax.patches[:3]]
    assert colors[0] == colors[1] != colors[2]


def test_a_widget_draws_its_defaults_first(capsys):
    seen = []
    explored = {"ranks": (1, 8, 4), "size": ["s", "m"]}
    widgets.explore(lambda ax, **values: seen.append(values), alt=ALT, **explored)
    assert seen == [{"ranks": 4, "size": "s"}] and ALT in capsys.readouterr().out


@pytest.mark.parametrize("choice", [(1, 8), (1, 8, 9), [], 4])
def test_a_choice_that_is_none_is_told(choice):
    with pytest.raises(InputError, match="neither"):
        widgets.explore(lambda ax, **values: None, alt=ALT, ranks=choice)


# --- what a figure says of itself: the numbers that it shows ---


def said(draw) -> str:
    with canvas() as (fig, ax):
        draw(ax)
        return alt_text(fig)


def test_lines_with_few_points_and_with_many():
    few = ([1, 2, 4], [0.5, 0.25, 2000.0])
    many = (range(10), [5, 9, 4, 3, 2, 1, 2, 3, 4, 4.5])
    ways, floor = {"ring": few, "tree": many}, {"floor": ([0, 9], [1, 1])}
    words = {"x": "size (MB)", "y": "time (s)", "title": "All-reduce"}
    text = said(lambda ax: lines(ways, theory=floor, ax=ax, **words))
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


def test_a_timeline_sums_each_lane():
    spans = [("rank 0", 0, 2, "computes"), ("rank 0", 2, 2.5, "waits")]
    spans += [("rank 0", 3, 4, "computes")]
    assert spent(spans) == "Timeline: rank 0: computes 3 ms, waits 0.5 ms."


# --- the load of experts as a picture: what it says is what was given, and the bias evens it ---


def test_a_capacity_is_rounded_up_and_without_one_nothing_is_dropped():
    assert capacity([5, 1, 1], 1.0) == 3 and capacity([5, 1], 1.0) == 3
    assert summary([6, 1, 1], None) == "The busiest expert gets 2.2x an even load"
    assert summary([6, 1, 1], 1.0) == "The busiest expert gets 2.2x an even load; 38% is dropped"


@pytest.mark.parametrize("skew", [0.0, 1.0, 2.0])
def test_no_choice_is_lost_and_the_bias_evens_the_load(skew):
    alone, balanced = skewed_load(skew), skewed_load(skew, balanced=True)
    assert sum(alone) == sum(balanced) == 512 * 2
    assert max(balanced) < 1.25 * 128 and max(balanced) <= max(alone)


# --- each lab has its small picture, which stays in its square and is no other lab's ---


def pixels(name: str) -> np.ndarray:
    """(200, 200) bool: where its ink is, with a room of a quarter around its square."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with canvas(width=2, height=2) as (figure, ax):
        figure.set_layout_engine("none")
        figure.set_dpi(100)
        ax.set_position([0, 0, 1, 1])
        bare(ax, 2, 2)
        GLYPHS[name](Pen(ax, 0.5, 0.5, 1.0))
        drawn = FigureCanvasAgg(figure)
        drawn.draw()
        return (np.asarray(drawn.buffer_rgba())[:, :, :3] != 255).any(axis=2)


def test_every_lab_has_one():
    assert [name.partition("_")[0] for name in lab_names()] == list(GLYPHS)


@pytest.mark.parametrize("name", GLYPHS)
def test_it_stays_in_its_square(name):
    ink = pixels(name)
    inside = np.zeros_like(ink)
    inside[44:156, 44:156] = True  # a line's width and a dot's half more
    assert ink.sum() > 400 and not (ink & ~inside).any()


def test_no_two_are_alike():
    drawn = [pixels(name).tobytes() for name in GLYPHS]
    assert len(set(drawn)) == len(GLYPHS)
