"""The load of experts as a picture: what it says is what was given, and the bias evens it."""

from __future__ import annotations

import pytest

from minitrain.lab.drawing.expert_load import capacity, draw_load, skewed_load, summary
from minitrain.lab.drawing.figures import canvas


def test_a_capacity_is_rounded_up_and_without_one_nothing_is_dropped():
    assert capacity([5, 1, 1], 1.0) == 3 and capacity([5, 1], 1.0) == 3
    assert summary([6, 1, 1], None) == "The busiest expert gets 2.2x an even load"
    assert summary([6, 1, 1], 1.0) == "The busiest expert gets 2.2x an even load; 38% is dropped"


def test_bars_are_what_is_kept_and_on_them_what_is_dropped():
    with canvas() as (_, ax):
        draw_load([6, 1, 1], factor=1.0, ax=ax)
        assert [bar.get_height() for bar in ax.patches] == [3, 1, 1, 3]
    with canvas() as (_, ax):
        draw_load([6, 1, 1], ax=ax)
        assert [bar.get_height() for bar in ax.patches] == [6, 1, 1]


@pytest.mark.parametrize("skew", [0.0, 1.0, 2.0])
def test_no_choice_is_lost_and_the_bias_evens_the_load(skew):
    alone, balanced = skewed_load(skew), skewed_load(skew, balanced=True)
    assert sum(alone) == sum(balanced) == 512 * 2
    assert max(balanced) < 1.25 * 128 and max(balanced) <= max(alone)


def test_a_larger_skew_is_a_busier_expert():
    assert max(skewed_load(0.0)) < max(skewed_load(1.0)) < max(skewed_load(3.0))
