from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh

from minitrain.errors import InputError
from minitrain.parallel.mesh import Mesh
from minitrain.ranks.launch import launch


def test_the_example_of_the_docstring():
    mesh = Mesh(dp=2, tp=4)
    assert repr(mesh) == "Mesh(dp=2, tp=4)" and mesh.size == 8 and mesh["tp"] == 4
    assert mesh.coordinates(5) == {"dp": 1, "tp": 1}
    assert mesh.ranks("tp", 5) == [4, 5, 6, 7]
    assert mesh.ranks("dp", 5) == [1, 5]
    assert mesh.ranks(("dp", "tp"), 5) == list(range(8))


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(sizes)
def test_coordinates_are_those_of_a_row_major_grid(shape):
    mesh = Mesh(**{f"axis{i}": size for i, size in enumerate(shape)})
    grid = torch.arange(mesh.size).view(shape)
    for rank in range(mesh.size):
        place = mesh.coordinates(rank)
        assert grid[tuple(place.values())].item() == rank == mesh.rank(place)
        for i, axis in enumerate(mesh.axes):
            line = grid.movedim(i, -1)[tuple(v for a, v in place.items() if a != axis)]
            assert mesh.ranks(axis, rank) == line.tolist()


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_lines_along_an_axis_cover_all_ranks_once(shape):
    mesh = Mesh(**{f"axis{i}": size for i, size in enumerate(shape)})
    for axis in mesh.axes:
        lines = {tuple(mesh.ranks(axis, rank)) for rank in range(mesh.size)}
        assert sorted(rank for line in lines for rank in line) == list(range(mesh.size))


def both_meshes(group):
    theirs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    mesh = Mesh(dp=2, tp=2)
    lines = {}
    for axis in mesh.axes:
        line = mesh.group(group, axis)
        assert list(line.ranks) == torch.distributed.get_process_group_ranks(theirs.get_group(axis))
        assert line.rank == theirs.get_local_rank(axis) == mesh.coordinates(group.rank)[axis]
        lines[axis] = line.all_reduce(torch.tensor([float(group.rank)])).item()
    return lines


def test_against_init_device_mesh():
    lines = list(launch(both_meshes, ranks=4, timeout=60))
    assert [line["tp"] for line in lines] == [1, 1, 5, 5]
    assert [line["dp"] for line in lines] == [2, 4, 2, 4]


def test_a_mesh_is_frozen_and_compares_by_value():
    assert Mesh(dp=2, tp=4) == Mesh(dp=2, tp=4) != Mesh(tp=4, dp=2)
    assert len({Mesh(dp=2), Mesh(dp=2)}) == 1
    with pytest.raises(AttributeError):
        Mesh(dp=2).shape = (3,)


@pytest.mark.parametrize(
    "mistake,words",
    [
        (lambda: Mesh(dp=2, tp=4).check(6), "Mesh(dp=2, tp=3)"),
        (lambda: Mesh(dp=2, tp=4).check(7), "Mesh(dp=7)"),
        (lambda: Mesh(dp=2, tp=4).check(16), "Mesh(dp=4, tp=4) or Mesh(dp=2, tp=8)"),
        (lambda: Mesh(), "Mesh(dp=4)"),
        (lambda: Mesh(dp=0), "1 or more"),
        (lambda: Mesh(dp=2.0), "whole number"),
        (lambda: Mesh(dp=2, tp=4)["pp"], "known are dp, tp"),
        (lambda: Mesh(dp=2).coordinates(2), "0 to 1"),
        (lambda: Mesh(dp=2, tp=2).rank({"dp": 0}), "one for each axis"),
    ],
)
def test_mistakes_say_what_fits(mistake, words):
    with pytest.raises(InputError) as caught:
        mistake()
    assert words in str(caught.value)
