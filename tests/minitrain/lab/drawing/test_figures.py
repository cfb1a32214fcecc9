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
from minitrain.lab import show, widgets
from minitrain.lab.drawing.charts import bars, timeline
from minitrain.lab.drawing.colors import READABLE, contrast
from minitrain.lab.drawing.figures import canvas, label_ends, lines, picture

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


def names_of(**heights) -> tuple[int, bool]:
    """How many names stand at ends of lines that end at these heights, and whether in a legend."""
    with canvas() as (_, ax):
        lines({k: ([1, 2], [0, v]) for k, v in heights.items()}, x="x", y="y", ax=ax)
        return len(ax.texts), ax.get_legend() is not None


def test_names_stand_at_the_ends_where_they_find_room():
    assert names_of(one=1) == (0, False), "the y axis says what a line alone is"
    assert names_of(one=1, two=2, three=3) == (3, False)
    assert names_of(one=1, two=1, three=1) == (0, True)
    assert names_of(one=1, **{"a name that is far too long to find room": 2}) == (0, True)


def test_bars_say_their_heights_with_the_same_decimals():
    def texts(values):
        with canvas() as (_, ax):
            bars(["a"] * len(values), values, y="s", ax=ax)
            return [text.get_text() for text in ax.texts]

    assert texts([47.34, 4.07, 0.0]) == ["47.3", "4.1", "0.0"]
    assert texts([10776, 512]) == ["10,776", "512"]
    assert texts([0.4123, 0.0002]) == ["0.412", "0.0002"]
    assert texts([12345.6, 7.2]) == ["12,346", "7"]


def test_a_theory_takes_the_colour_of_its_series():
    with canvas() as (_, ax):
        lines({"ring": ([1, 2], [1, 2]), "tree": ([1, 2], [2, 3])}, x="x", y="y", ax=ax,
              theory={"tree, formula": ([1, 2], [2, 3])})  # fmt: skip
    assert (
        ax.lines[2].get_color() == ax.lines[1].get_color() and ax.lines[2].get_linestyle() == "--"
    )


def test_theories_of_their_own_differ_by_their_dashes():
    with canvas() as (_, ax):
        level = {name: ([1, 2], [i, i]) for i, name in enumerate(("all weights", "the blocks"))}
        lines({"ring": ([1, 2], [1, 2])}, x="x", y="y", theory=level, ax=ax)
        assert ax.lines[1].get_linestyle() != ax.lines[2].get_linestyle()


def test_words_in_the_colour_of_a_series_are_dark_enough_to_read():
    with canvas() as (fig, ax):
        lines({str(i): ([1, 2], [i, i]) for i in range(7)}, x="x", y="y", labels="direct", ax=ax)
        picture(fig, "seven level lines, one above the other")
        assert min(contrast("white", text.get_color()) for text in ax.texts) >= READABLE
        assert len({str(text.get_color()) for text in ax.texts}) == 7


def test_a_few_doublings_are_the_ticks():
    def ticks(xs):
        with canvas() as (_, ax):
            lines({"ring": (xs, xs)}, x="x", y="y", log="x", ax=ax)
            return [text.get_text() for text in ax.get_xticklabels()]

    assert ticks([1, 2, 4, 2048]) == ["1", "2", "4", "2,048"]
    assert "2,048" not in ticks([1, 3, 2048]), "not a doubling"
    assert "65,536" not in ticks([1024, 65536]), "too long side by side"


def test_series_differ_by_marker_and_bars_by_hatch():
    with canvas() as (_, ax):
        lines({str(i): ([1, 2], [i, i]) for i in range(4)}, x="x", y="y", ax=ax)
        assert len({line.get_marker() for line in ax.lines}) == 4
    with canvas() as (_, ax):
        bars(["a"], {"one": [1], "two": [2]}, y="s", ax=ax)
        assert len({bar.get_hatch() for bar in ax.patches}) == 2


def test_bars_stack():
    with canvas() as (_, ax):
        bars(["a", "b"], {"one": [1, 2], "two": [3, 4]}, y="s", stacked=True, ax=ax)
        assert [bar.get_y() for bar in ax.patches] == [0, 0, 1, 2]


def test_bars_of_the_wrong_number_are_told():
    with pytest.raises(InputError, match="2 values for 1 names"):
        bars(["a"], [1, 2], y="s", alt=ALT)


def test_a_timeline_has_a_lane_a_row_and_a_colour_a_kind():
    spans = [("rank 0", 0, 2, "forward"), ("rank 1", 1, 3, "forward"), ("rank 0", 2, 5, "backward")]
    with canvas() as (_, ax):
        timeline(spans, ax=ax)
        assert [tick.get_text() for tick in ax.get_yticklabels()] == ["rank 0", "rank 1"]
        assert ax.get_ylim()[0] > ax.get_ylim()[1], "lanes run from the top"
        colors = [bar.get_facecolor() for bar in ax.patches[:3]]
    assert colors[0] == colors[1] != colors[2]


def test_an_empty_timeline_is_told():
    with pytest.raises(InputError, match="no spans"):
        timeline([], alt=ALT)


def test_outside_a_notebook_a_figure_is_its_words(capsys):
    show.lines({"ring": ([1, 2], [1, 2])}, x="x", y="y", alt=ALT)
    assert capsys.readouterr().out == f"[figure: {ALT}]\n"


def test_a_widget_draws_its_defaults_first(capsys):
    seen = []
    widgets.explore(
        lambda ax, **values: seen.append(values), alt=ALT, ranks=(1, 8, 4), size=["s", "m"]
    )
    assert seen == [{"ranks": 4, "size": "s"}] and ALT in capsys.readouterr().out


@pytest.mark.parametrize("choice", [(1, 8), (1, 8, 9), [], 4])
def test_a_choice_that_is_none_is_told(choice):
    with pytest.raises(InputError, match="neither"):
        widgets.explore(lambda ax, **values: None, alt=ALT, ranks=choice)
