"""The loader: every row once an epoch, ranks disjoint, resumed at the exact sample."""

from __future__ import annotations

import json
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.loader import Batch, Loader
from minitrain.data.packing import IGNORED, PADDING, pack
from minitrain.data.stream.order import InOrder, Shuffled
from minitrain.data.stream.token_files import TokenRows, write_token_files
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


@pytest.mark.parametrize("change", [{"rows": 5}, {"seed": 3}, {"consumed": 1.5}, {"epoch": None}])
def test_the_state_of_other_data_and_a_place_that_is_none_are_refused(change):
    loader = Loader(packed_rows(4), 1)
    with pytest.raises(InputError, match=r"resume with the same data|give what state_dict gave"):
        loader.load_state_dict(loader.state_dict() | change)


def test_wrong_arguments_are_told():
    for arguments, says in (
        ({"batch_size": 0}, "whole number, 1 or more"),
        ({"rank": 2, "world_size": 2}, "count from 0"),
        ({"world_size": 0}, "count from 0"),
        ({"seed": -1}, "whole number, 0 or more"),
        ({"seed": 1.5}, "whole number, 0 or more"),
        ({"workers": -1}, "workers"),
    ):
        with pytest.raises(InputError, match=says):
            Loader(packed_rows(4), **({"batch_size": 1} | arguments))


def endless(loader: Loader):
    while True:
        yield from loader


def assert_same(a: Batch, b: Batch) -> None:
    for name, tensor in vars(a).items():
        assert torch.equal(tensor, getattr(b, name)), name


# Token files through the loader: ranks, workers and interruptions change nothing of the order


ROWS = 53


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Row i is document i: its number, and the end."""
    folder = tmp_path_factory.mktemp("tokens")
    write_token_files(folder, [[i + 1] for i in range(ROWS)], 99, shard_tokens=40)
    return folder


def rows_of(batch: Batch) -> list[int]:
    return [row[0] for row in batch.documents.tolist() if row[0] >= 0]


def one_segment(folder, state, ranks, batch, workers, steps, seed) -> tuple[list[int], dict]:
    """`steps` steps on all ranks, or as many as the epoch has: the rows in their global order."""
    loaders = [
        Loader(TokenRows(folder, 2), batch, r, ranks, seed, workers=workers) for r in range(ranks)
    ]
    if state:
        for loader in loaders:
            loader.load_state_dict(state)
    taken = [[rows_of(b) for b in islice(loader, steps)] for loader in loaders]
    assert len({len(own) for own in taken}) == 1, "every rank makes the same steps"
    states = [loader.state_dict() for loader in loaders]
    assert all(own == states[0] for own in states), "any rank's state is the run's"
    together = []
    for step in zip(*taken):
        columns = [rank + [None] * (batch - len(rank)) for rank in step]
        together += [row for across in zip(*columns) for row in across if row is not None]
    return together, states[0]


def whole_epoch(folder, segments, seed) -> list[int]:
    seen, state = [], None
    for ranks, batch, workers, steps in segments:
        if len(seen) < ROWS:
            rows, state = one_segment(folder, state, ranks, batch, workers, steps, seed)
            seen += rows
    return seen


SEGMENT = st.tuples(st.integers(1, 4), st.integers(1, 4), st.just(0), st.integers(0, 5))


@given(st.lists(SEGMENT, max_size=6), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_any_interruption_and_any_ranks_give_every_row_once_in_one_order(folder, segments, seed):
    seen = whole_epoch(folder, [*segments, (1, 1, 0, ROWS)], seed)
    assert seen == Shuffled(ROWS)(seed, 0).tolist()
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("seed", range(3))
def test_workers_change_nothing(folder, seed):
    """The same with processes of torch's DataLoader, which read ahead of what is handed out."""
    rng = np.random.default_rng(seed)
    segments = [(int(rng.integers(1, 3)), 3, int(rng.integers(0, 3)), 2) for _ in range(2)]
    seen = whole_epoch(folder, [*segments, (1, 16, 2, ROWS)], seed)
    assert seen == Shuffled(ROWS)(seed, 0).tolist()


def test_the_second_epoch_has_another_order_with_workers_too(folder):
    loader = Loader(TokenRows(folder, 2), 16, workers=1, seed=1)
    epochs = [list(chain(*map(rows_of, loader))) for _ in range(2)]
    assert epochs == [Shuffled(ROWS)(1, epoch).tolist() for epoch in range(2)]
    assert epochs[0] != epochs[1]


def test_drop_last_drops_the_same_rows_with_workers_and_the_runs_generator_is_left_alone(folder):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    runs = [Loader(TokenRows(folder, 2), 5, drop_last=True, workers=w) for w in (0, 2)]
    taken = [[rows_of(batch) for batch in loader] for loader in runs]
    assert taken[0] == taken[1] and len(taken[0]) == len(runs[0]) == ROWS // 5
    assert all(loader.epoch == 1 for loader in runs)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_shuffle_is_uniform():
    """Where row 0 lands over 4,000 seeds: chi-squared with 9 degrees of freedom, p = 0.001."""
    places = [int(np.flatnonzero(Shuffled(10)(seed, 0) == 0)[0]) for seed in range(4000)]
    counts = np.bincount(places, minlength=10)
    assert ((counts - 400) ** 2 / 400).sum() < 27.9


def test_what_moves_the_loader_under_an_iteration_is_told():
    loader = Loader(pack([[1]] * 8, 2), 2)
    start, batches = loader.state_dict(), iter(loader)
    next(batches)
    loader.load_state_dict(start)
    with pytest.raises(InputError, match="begin a new iteration"):
        next(batches)


def test_an_order_for_other_rows_and_another_order_on_resuming_are_told():
    packed = pack([[1]] * 8, 2)
    with pytest.raises(InputError, match="make it for these rows"):
        next(iter(Loader(packed, 2, order=InOrder(9))))
    ordered = Loader(packed, 2, order=InOrder(8))
    for other in (Loader(packed, 2), Loader(packed, 2, order=Shuffled(8))):
        with pytest.raises(InputError, match="another order"):
            other.load_state_dict(ordered.state_dict())
