"""Token files through the loader: ranks, workers and interruptions change nothing of the order."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from minitrain.data.loader import Batch, Loader
from minitrain.data.packing import pack
from minitrain.data.stream.order import InOrder, Shuffled
from minitrain.data.stream.token_files import TokenRows, write_token_files
from minitrain.errors import InputError

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


def test_a_stream_that_forgets_its_worker_gives_rows_twice(folder):
    """The naive version: every worker iterates the whole dataset."""

    class Naive(IterableDataset):
        def __iter__(self):
            return iter(Loader(TokenRows(folder, 2), 8, shuffle=False))

    batches = DataLoader(Naive(), batch_size=None, num_workers=2)
    assert sorted(chain(*map(rows_of, batches))) == sorted([*range(ROWS)] * 2)


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
    with pytest.raises(InputError, match="workers"):
        Loader(packed, 2, workers=-1)
    ordered = Loader(packed, 2, order=InOrder(8))
    for other in (Loader(packed, 2), Loader(packed, 2, order=Shuffled(8))):
        with pytest.raises(InputError, match="another order"):
            other.load_state_dict(ordered.state_dict())
