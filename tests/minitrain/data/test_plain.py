"""Lab e11's plain versions are the package's own, written shorter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minitrain.data import plain
from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.preparation.deduplication import near
from minitrain.data.preparation.deduplication.words import shingle_hashes
from minitrain.data.preparation.filters.rules import GOPHER, first_failed
from minitrain.data.stream.mixture import tempered

STORIES = make_corpus(30_000, seed=3).documents
PAGES = [" ".join(STORIES[i : i + 3]) for i in range(0, len(STORIES) - 2, 3)]
TEXTS = [*PAGES[:10], *STORIES[:10], "", " \n", "\n".join("- " + s for s in STORIES[:5]), PAGES[0]]


@pytest.mark.parametrize("text", TEXTS)
def test_a_page_fails_the_rule_that_gophers_filter_names(text: str):
    assert plain.quality(text) == first_failed(GOPHER, text)


def signatures(hashes: int) -> np.ndarray:
    a, b = near._permutations(hashes, seed=4)
    found, bounds = shingle_hashes(TEXTS)
    return plain.minhash((found >> np.uint64(32)).astype(np.uint32), bounds, a, b)


def test_signatures_are_those_of_the_package_bit_for_bit():
    own = signatures(16)
    assert np.array_equal(own, near.minhash(TEXTS, 16, seed=4)) and own.dtype == np.uint32


@pytest.mark.parametrize("bands, rows", [(8, 2), (4, 4), (3, 5)])
def test_pairs_have_the_packages_union(bands: int, rows: int):
    own = signatures(16)
    pairs = plain.candidate_pairs(own, bands, rows)
    keys = near.band_keys(own, near.Bands(bands, rows))
    wanted = near.clusters(near.pairs_of_keys(keys), len(TEXTS))
    assert plain.clusters(pairs, len(TEXTS)) == wanted.tolist()
    assert (0, len(TEXTS) - 1) in pairs, "the first page came again"


@pytest.mark.parametrize("size, kinds", [(0, 1), (40, 1), (200, 2)])
def test_suffixes_are_those_of_sorting(size: int, kinds: int):
    symbols = np.random.default_rng(size).integers(0, kinds, size)
    order = sorted(range(size), key=lambda start: symbols[start:].tolist())
    assert plain.suffix_array(symbols).tolist() == order


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0, float("inf")])
def test_weights_are_tempered_where_no_source_is_too_small(temperature: float):
    sizes = [2e9, 3e10, 1e12]
    own = plain.mixture_weights(sizes, temperature, 1e6)
    assert own == pytest.approx(tempered(sizes, temperature), rel=1e-12)


@pytest.mark.parametrize("budget", [1e9, 3e11, 1e12, 4e12])
def test_no_source_is_read_too_often_and_the_free_ones_keep_their_ratio(budget: float):
    sizes, most = [2e9, 3e10, 4e10, 1e12], 4.0
    weights = plain.mixture_weights(sizes, 3.0, budget, most)
    caps = [most * size / budget for size in sizes]
    assert sum(weights) == pytest.approx(1) and all(w <= c * 1.001 for w, c in zip(weights, caps))
    free = [i for i in range(4) if weights[i] < caps[i] * 0.999]
    base = tempered(sizes, 3.0)
    assert len({round(weights[i] / base[i], 9) for i in free}) <= 1


def test_more_than_so_many_passes_over_all_is_refused():
    with pytest.raises(ValueError, match="41 tokens are more than 4 passes over all sources"):
        plain.mixture_weights([4, 6], 1.0, 41)


def test_rows_are_laid_out_as_packed():
    documents = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 10]]
    packed = pack(documents, 6, end_token=11)
    rows = [
        [documents[i] for i in dict.fromkeys(row.tolist()) if i >= 0] for row in packed.documents
    ]
    tokens, targets, positions, mask = plain.lay_out(rows, 6, 11)
    assert torch.equal(tokens, packed.tokens.long()) and torch.equal(targets, packed.targets.long())
    assert torch.equal(positions, packed.positions())
    same = packed.documents[:, :, None] == packed.documents[:, None, :]
    assert torch.equal(mask, same.tril())


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_stream_deals_out_and_resumes_as_the_loader(ranks: int):
    rows = pack([[i] for i in range(1, 24)], 2, end_token=0)
    streams = [plain.Stream(len(rows), 2, rank, ranks, seed=5) for rank in range(ranks)]
    loaders = [Loader(rows, 2, rank, ranks, seed=5) for rank in range(ranks)]
    for stream, loader in zip(streams, loaders):
        assert sum(1 for _ in stream) == len(list(loader)) and stream.state()["epoch"] == 1
    streams[0].resume({"epoch": 2, "consumed": 8})
    left = [row for step in streams[0] for row in step]
    fresh = plain.Stream(len(rows), 1, seed=5)
    fresh.resume({"epoch": 2, "consumed": 0})
    order = [row for step in fresh for row in step]
    steps = [order[at : at + 2 * ranks] for at in range(8, len(rows), 2 * ranks)]
    assert left == [row for step in steps for row in step[::ranks]]
