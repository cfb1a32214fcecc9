"""What probes/alive.py counts: storages made inside, as long as anybody holds them."""

from __future__ import annotations

import torch

from ..labs.probes.alive import Alive


def test_a_clone_counts_once_as_long_as_it_is_held():
    given, alive = torch.ones(4), Alive()
    with alive:
        view, clone = given.view(2, 2), given.clone()
        kept = [clone, clone[1:], given.add_(1)]
    assert alive.nbytes() == 16, "no view, and nothing that was there before"
    assert alive.nbytes([clone[2:]]) == 0 and alive.nbytes(at_least=17) == 0
    del clone, kept
    assert alive.nbytes() == 0 and view.shape == (2, 2)


def test_memory_that_was_given_back_counts_no_more():
    alive = Alive()
    with alive:
        full = torch.zeros(8)
    full.untyped_storage().resize_(0)
    assert alive.nbytes() == 0
    full.untyped_storage().resize_(32)
    assert alive.nbytes() == 32
