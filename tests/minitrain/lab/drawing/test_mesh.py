"""The drawing of a mesh: what each rank holds, whose group crosses nodes, words for who cannot see."""

from __future__ import annotations

import pytest
from matplotlib.patches import FancyArrowPatch

from minitrain.errors import InputError
from minitrain.lab.drawing.figures import canvas
from minitrain.lab.drawing.mesh import (
    HOLDING,
    LANE,
    LARGEST,
    SMALLEST,
    draw_mesh,
    held,
    path_of,
    places_of,
    summary,
)
from minitrain.parallel.mesh import Mesh

EIGHT = Mesh(pp=2, dp=2, tp=2)


def test_every_layer_head_and_row_is_held_by_as_many_ranks():
    mesh = Mesh(pp=3, dp=2, ep=2, cp=1, tp=2)
    for what, parts in {"layers": 3, "heads": 2, "experts": 2, "rows": 4}.items():
        count = dict.fromkeys(range(HOLDING[what]), 0)
        for rank in range(mesh.size):
            for number in held(mesh, rank, HOLDING)[what][0]:
                count[number] += 1
        assert set(count.values()) == {mesh.size // parts}, what
    assert "tokens" not in held(mesh, 0, HOLDING), "an axis of size 1 cuts nothing"


def test_the_words_say_whether_a_group_leaves_its_node():
    assert summary(EIGHT, 4, "tp", 5).endswith("along tp: 4, 5, inside one node.")
    assert summary(EIGHT, 4, "pp", 5).endswith("along pp: 1, 5, over 2 nodes.")
    assert summary(EIGHT, 8, "", 0) == "8 ranks on 1 node of 8."


def test_no_two_ranks_share_a_place():
    for size, per_node in ((8, 4), (24, 8), (6, 4), (512, 8), (16, 16)):
        assert len(set(places_of(size, per_node))) == size


def arrows(mesh: Mesh, axis: str) -> list[str]:
    """The styles of the lines of the ring that is drawn."""
    with canvas() as (_, ax):
        draw_mesh(mesh, ranks_per_node=4, axis=axis, rank=1, ax=ax)
        return [p.get_linestyle() for p in ax.patches if isinstance(p, FancyArrowPatch)]


def test_a_message_between_nodes_is_dashed():
    assert arrows(EIGHT, "tp") == ["-", "-"]
    assert arrows(EIGHT, "pp") == ["--", "--"]


def test_an_arrow_to_a_row_below_covers_no_words():
    for per_node in (4, 8):  # to another node, and inside one
        places = places_of(8, per_node)
        above, below = places[1], places[5]
        down = [y for _, y in path_of(above, below)]
        up = [y for _, y in path_of(below, above)]
        assert above[1] + 0.9 < down[0] < down[-1] < below[1] + 0.1
        assert above[1] + 0.9 < up[-1] < up[0] < below[1] + 0.1


def test_arrows_in_a_row_run_through_the_lane_above_it_and_apart():
    one, other = places_of(8, 4)[0], places_of(8, 4)[3]
    there, back = path_of(one, other), path_of(other, one)
    for path in (there, back):
        assert all(one[1] - LANE < y < one[1] + 0.04 for _, y in path)  # a box begins at 0.04
    assert there[1][1] > back[1][1] and there[0][0] > back[-1][0]


def test_words_are_as_large_as_their_stripe_lets_them_be():
    sizes = []
    for width in (9, 4):
        with canvas(width=width, height=5) as (_, ax):
            draw_mesh(EIGHT, ranks_per_node=4, ax=ax)
            sizes.append(min(text.get_fontsize() for text in ax.texts))
    assert sizes[0] == LARGEST > sizes[1] >= SMALLEST


def test_an_axis_that_is_none_is_named():
    with pytest.raises(InputError, match="known are"):
        draw_mesh(EIGHT, axis="cp")
