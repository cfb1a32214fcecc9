"""Clusters: union-find is the oracle, and what it is not is shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.preparation.deduplication.clusters import clusters, clusters_naive
from minitrain.errors import InputError


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_equal_to_union_find(count, edges, seed):
    pairs = np.random.default_rng(seed).integers(0, count, (edges, 2))
    found = clusters(pairs, count)
    np.testing.assert_array_equal(found, clusters_naive(pairs, count))
    assert (found[pairs[:, 0]] == found[pairs[:, 1]]).all()


def test_a_chain_is_one_cluster_and_its_first_is_the_lowest():
    count = 1000
    order = np.random.default_rng(0).permutation(count)
    chain = np.stack((order[:-1], order[1:]), axis=1)
    assert (clusters(chain, count) == 0).all(), "the closure, not only the neighbours"
    one_step = np.arange(count)
    np.minimum.at(one_step, chain.max(axis=1), chain.min(axis=1))
    assert (one_step != 0).any(), "a version without closure is told apart by this test"


def test_no_pairs_and_pairs_that_are_none():
    assert clusters(np.empty((0, 2), np.int64), 3).tolist() == [0, 1, 2]
    for pairs, says in ((np.array([[0, 3]]), "0 to 2"), (np.array([0, 1]), "shape")):
        for version in (clusters, clusters_naive):
            with pytest.raises(InputError, match=says):
                version(pairs, 3)
