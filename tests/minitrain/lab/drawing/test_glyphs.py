"""Each lab has its small picture, which stays in its square and is no other lab's."""

from __future__ import annotations

import numpy as np
import pytest

from minitrain.lab.drawing.figures import canvas
from minitrain.lab.drawing.glyphs import GLYPHS, Pen
from minitrain.lab.drawing.shapes import bare
from minitrain.lab.grading.collect import lab_names


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
