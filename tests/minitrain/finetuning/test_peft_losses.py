"""PEFT is the oracle: the same start, the same twenty steps, the same losses and logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .peft_peers import OPTIONS, adapted_pair, batch, logits_of, same_model, train

METHODS = list(OPTIONS)


def loss(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("method", METHODS)
def test_twenty_steps_have_pefts_losses(method, tmp_path):
    ours, peer = same_model(tmp_path)
    theirs = adapted_pair(method, ours, peer)
    found = train(ours, lambda step: loss(ours(batch(step)), batch(step)), 20)
    wanted = train(theirs, lambda step: loss(logits_of(theirs, batch(step)), batch(step)), 20)
    assert found[0] - found[16] > 1e-3, "it must have learned, or the comparison says little"
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=0, atol=1e-5)
