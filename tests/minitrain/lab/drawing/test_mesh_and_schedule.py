"""Drawings of a mesh, with what each rank holds, and of a schedule as planned, run and timed."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgb

from minitrain.errors import InputError
from minitrain.lab.drawing import mesh as mesh_drawing
from minitrain.lab.drawing.figures import canvas
from minitrain.lab.drawing.mesh import HOLDING, draw_mesh, held, places_of
from minitrain.lab.drawing.schedule import KINDS, draw_schedule, summary
from minitrain.measure.traffic import Trace
from minitrain.parallel.mesh import Mesh
from minitrain.parallel.pipeline.operations import Operation
from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.timeline import clocked, executed
from minitrain.planning.run import Model, Plan, make_run
from minitrain.planning.step.step import timeline

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
    assert mesh_drawing.summary(EIGHT, 4, "tp", 5).endswith("along tp: 4, 5, inside one node.")
    assert mesh_drawing.summary(EIGHT, 4, "pp", 5).endswith("along pp: 1, 5, over 2 nodes.")
    assert mesh_drawing.summary(EIGHT, 8, "", 0) == "8 ranks on 1 node of 8."


def test_no_two_ranks_share_a_place():
    for size, per_node in ((8, 4), (24, 8), (6, 4), (512, 8), (16, 16)):
        assert len(set(places_of(size, per_node))) == size


def test_an_axis_that_is_none_is_named():
    with pytest.raises(InputError, match="known are"):
        draw_mesh(EIGHT, axis="cp")


# --- schedules ---


def boxes(clock, **options):
    """(rank, start, end, colour) of each operation drawn, and the numbers written in them."""
    with canvas(width=10) as (_, ax):
        draw_schedule(clock, ax=ax, **options)
        drawn = [
            (rank, path.vertices[:4, 0].min(), path.vertices[:4, 0].max(), tuple(color[:3]))
            for rank, lane in enumerate(ax.collections)
            for path, color in zip(lane.get_paths(), lane.get_facecolors())
        ]
        hatched = [bar for bar in ax.patches if bar.get_hatch() and bar.get_width() > 0]
        return drawn, [text.get_text() for text in ax.texts], hatched, ax.get_xlabel()


def test_a_box_for_each_operation_in_its_colour_with_its_number():
    schedule = make_schedule("zero-bubble", 2, 3)
    drawn, numbers, hatched, label = boxes(schedule)
    events = [(r, e) for r, lane in enumerate(clocked(schedule).ranks) for e in lane]
    assert len(drawn) == len(events) == 2 * 3 * 3
    for (rank, start, end, color), (r, event) in zip(drawn, events):
        assert (rank, start, end) == pytest.approx((r, event.start, event.end))
        assert color == pytest.approx(to_rgb(KINDS[event.operation.kind][0]))
    assert numbers == [str(event.operation.microbatch) for _, event in events]
    assert len(hatched) == 2 and label == "time (forwards)"


def test_what_ran_is_drawn_from_the_traces():
    """A trace with marks of two steps: the last one counts, and its beginning is zero."""
    late, first, second = Operation("F", 9), Operation("F", 0), Operation("B", 0, 1)
    marks = [("pipeline", 0.0), (late, 0.0), (late, 1.0), ("pipeline", 2.0)]
    marks += [(first, 2.001), ("other", 2.0), (first, 2.002), (second, 2.003), (second, 2.005)]
    clock = executed([Trace(marks=marks)])
    drawn, numbers, _, label = boxes(clock, unit="ms")
    assert [(start, end) for _, start, end, _ in drawn] == [
        pytest.approx((1, 2)),
        pytest.approx((3, 5)),
    ]
    assert numbers == ["0", "0"] and label == "time (ms)"
    assert [str(event.operation) for event in clock.ranks[0]] == ["F0", "B0.1"]


def test_what_the_planner_times_is_drawn_alike():
    model = Model(8, 1024, 8, 8, 4096, 32000)
    clock = timeline(make_run("H100-SXM-80GB", model, Plan(pp=2), 2048, 3))
    drawn, numbers, *_ = boxes(clock, unit="ms")
    assert len(drawn) == 2 * 2 * 3 and set(numbers) <= {"0", "1", "2"}


def test_the_words_say_bubble_and_live_activations(capsys):
    words = summary(clocked(make_schedule("1f1b", 4, 8)))
    assert "4 ranks, 8 microbatches" in words and "38%" in words and "4, 3, 2, 1" in words
    draw_schedule(make_schedule("1f1b", 4, 8))
    assert words in capsys.readouterr().out
