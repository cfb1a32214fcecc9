"""The loader: every row once an epoch, ranks disjoint, resumed at the exact sample."""

from __future__ import annotations

import json
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.loader import Batch, Loader
from minitrain.data.packing import IGNORED, PADDING, pack
from minitrain.errors import InputError


def packed_rows(count: int):
    """Row i is full of one document, whose first token is 10 + i."""
    return pack([[10 + i, 1, 1] for i in range(count)], length=4)


def row_ids(batch: Batch) -> list[int]:
    """Which rows a batch holds; rows of padding are left out."""
    return [
        row[1] for row, own in zip(batch.tokens.tolist(), batch.documents.tolist()) if own[0] >= 0
    ]


SHAPES = {"rows": st.integers(1, 40), "batch": st.integers(1, 5), "ranks": st.integers(1, 5)}


@given(**SHAPES, seed=st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_ranks_are_disjoint_and_exhaustive_and_equal_to_one(rows, batch, ranks, seed):
    packed = packed_rows(rows)
    loaders = [Loader(packed, batch, rank, ranks, seed) for rank in range(ranks)]
    one = Loader(packed, batch * ranks, seed=seed)
    for _ in range(2):  # epochs
        steps = [[row_ids(b) for b in loader] for loader in loaders]
        assert {len(step) for step in steps} == {len(one)}, "every rank makes the same steps"
        together = [sorted(chain(*step)) for step in zip(*steps)]
        assert together == [sorted(row_ids(b)) for b in one]
        assert sorted(chain(*together)) == [10 + i for i in range(rows)]


@given(**SHAPES)
@settings(max_examples=50, deadline=None)
def test_drop_last_gives_whole_batches_only(rows, batch, ranks):
    if rows < batch * ranks:
        with pytest.raises(InputError, match="do not fill one step"):
            Loader(packed_rows(rows), batch, 0, ranks, drop_last=True)
        return
    loader = Loader(packed_rows(rows), batch, 0, ranks, drop_last=True)
    batches = list(loader)
    assert len(batches) == len(loader) == rows // (batch * ranks)
    assert all(len(row_ids(b)) == batch for b in batches)
    assert loader.epoch == 1


@given(**SHAPES, taken=st.integers(0, 30), drop_last=st.booleans())
@settings(max_examples=80, deadline=None)
def test_resumed_at_the_exact_sample(rows, batch, ranks, taken, drop_last):
    packed = packed_rows(rows)
    if drop_last and rows < batch * ranks:
        return
    arguments = {"rank": ranks - 1, "world_size": ranks, "seed": 4, "drop_last": drop_last}
    whole = Loader(packed, batch, **arguments)
    stream = endless(whole)
    for _ in range(taken):
        next(stream)
    resumed = Loader(packed, batch, **arguments)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    after = endless(resumed)
    for _ in range(2 * len(whole) + 1):
        assert_same(next(stream), next(after))


def test_resumed_on_another_number_of_ranks():
    packed = packed_rows(24)
    two = [Loader(packed, 3, rank, 2) for rank in range(2)]
    streams = [endless(loader) for loader in two]
    seen = [row for stream in streams for row in row_ids(next(stream))]
    four = [Loader(packed, 2, rank, 4) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(two[0].state_dict())
    rest = [row for loader in four for b in loader for row in row_ids(b)]
    assert sorted(seen + rest) == [10 + i for i in range(24)]


def test_epochs_differ_seeds_differ_and_one_of_each_is_always_the_same():
    packed = packed_rows(16)
    loader = Loader(packed, 16, seed=1)
    orders = [row_ids(next(iter(Loader(packed, 16, seed=s)))) for s in (1, 1, 2)]
    first, second = row_ids(next(iter(loader))), row_ids(next(iter(loader)))
    assert orders[0] == orders[1] == first
    assert orders[0] != orders[2]
    assert first != second
    assert orders[0] == [19, 12, 24, 14, 22, 17, 15, 25, 10, 21, 18, 20, 23, 16, 13, 11]
    unshuffled = Loader(packed, 16, shuffle=False)
    assert row_ids(next(iter(unshuffled))) == [10 + i for i in range(16)]


def test_a_batch_has_what_a_model_needs():
    packed = pack([[5, 6], [7, 8], [9]], length=8)
    batch = next(iter(Loader(packed, 1))).to("cpu")
    assert batch.tokens.tolist() == [[0, 5, 6, 0, 7, 8, 0, 9]]
    assert batch.targets.tolist() == [[5, 6, 0, 7, 8, 0, 9, 0]]
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 2, 0, 1]]
    assert batch.tokens_counted == 8
    assert {field.dtype for field in vars(batch).values()} == {torch.int64}
    assert {field.device.type for field in vars(batch.to("meta")).values()} == {"meta"}


def test_a_rank_without_rows_gets_padding_that_counts_nothing():
    last = list(Loader(packed_rows(3), 1, rank=1, world_size=2))[-1]
    assert last.tokens.shape == (1, 4)
    assert last.tokens_counted == 0
    assert set(last.targets.flatten().tolist()) == {IGNORED}
    assert set(last.documents.flatten().tolist()) == {PADDING}


@pytest.mark.parametrize("change", [{"rows": 5}, {"seed": 3}])
def test_the_state_of_other_data_is_refused(change):
    loader = Loader(packed_rows(4), 1)
    with pytest.raises(InputError, match="resume with the same data"):
        loader.load_state_dict(loader.state_dict() | change)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"batch_size": 0}, "use 1 or more"),
        ({"rank": 2, "world_size": 2}, "count from 0"),
        ({"world_size": 0}, "count from 0"),
        ({"seed": -1}, "negative"),
    ],
)
def test_wrong_arguments_are_told(arguments, says):
    with pytest.raises(InputError, match=says):
        Loader(packed_rows(4), **({"batch_size": 1} | arguments))


def endless(loader: Loader):
    while True:
        yield from loader


def assert_same(a: Batch, b: Batch) -> None:
    for name, tensor in vars(a).items():
        assert torch.equal(tensor, getattr(b, name)), name


@pytest.mark.parametrize("change", [{"consumed": 1.5}, {"consumed": -2}, {"epoch": None}])
def test_a_place_that_is_none_is_refused(change):
    loader = Loader(pack([[1], [2]], 2), 1)
    with pytest.raises(InputError, match="give what state_dict gave"):
        loader.load_state_dict({**loader.state_dict(), **change})
