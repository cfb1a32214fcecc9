from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitrain.errors import InputError
from minitrain.measure.memory import MemoryLedger
from minitrain.parallel.collectives.differentiable import gather
from minitrain.parallel.tensor.vocabulary import (
    CHUNK_NUMBERS,
    vocabulary_parallel_loss,
)
from minitrain.ranks.launch import launch
from minitrain.training.loss import token_weighted_loss

# vocabulary, factor on the logits, share of targets ignored
CASES = {
    "plain": (24, 1, 0.0),
    "ignored": (24, 1, 0.4),
    "all ignored": (24, 1, 1.0),
    "extreme": (24, 1e4, 0.4),
    "padded": (21, 1, 0.0),
    "a rank with padding only": (3, 1, 0.4),
    "a vocabulary of one": (1, 1, 0.0),
}
SHAPE = 3, 5


def batch(vocab_size, factor, ignored, dtype=torch.float64):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(*SHAPE, vocab_size, dtype=torch.float64, generator=generator) * factor
    targets = torch.randint(vocab_size, SHAPE, generator=generator)
    return logits.to(dtype), targets.masked_fill(
        torch.rand(SHAPE, generator=generator) < ignored, -100
    )


def part(whole, group):
    """This rank's ⌈V/N⌉ columns; the padding holds what would show if it were read."""
    share = -(-whole.shape[-1] // group.size)
    padded = F.pad(whole, (0, share * group.size - whole.shape[-1]), value=1e9)
    return padded.split(share, dim=-1)[group.rank].clone().requires_grad_()


def one_process(case):
    vocab_size, factor, ignored = CASES[case]
    logits, targets = batch(vocab_size, factor, ignored)
    logits.requires_grad_()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / 7
    loss.backward()
    return loss.detach(), logits.grad


def run(group, loss_of):
    out = {}
    for case, (vocab_size, factor, ignored) in CASES.items():
        logits, targets = batch(vocab_size, factor, ignored)
        mine = part(logits, group)
        before = mine.detach().clone()
        loss = loss_of(mine, targets, 7, group, vocab_size)
        loss.backward()
        assert torch.equal(before, mine.detach()), "the logits are left alone"
        out[case] = loss.detach(), mine.grad
    return out


def check(results, case):
    want, whole = one_process(case)
    for result in results:
        torch.testing.assert_close(result[case][0], want, rtol=1e-12, atol=1e-12, msg=case)
    together = torch.cat([result[case][1] for result in results], dim=-1)
    got, padding = together.split([whole.shape[-1], together.shape[-1] - whole.shape[-1]], -1)
    torch.testing.assert_close(got, whole, rtol=1e-10, atol=1e-12, msg=case)
    assert (padding == 0).all(), f"{case}: padding has no gradient"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_loss_and_gradient_equal_one_process(ranks):
    results = launch(run, vocabulary_parallel_loss, ranks=ranks)
    for case in CASES:
        check(results, case)


def padding_counts(logits, targets, total, group, vocab_size):
    return vocabulary_parallel_loss(logits, targets, total, group, logits.shape[-1] * group.size)


def no_maximum(logits, targets, total, group, vocab_size):
    """exp of the logits themselves, summed over the ranks: infinite from 710 on."""
    whole = gather(logits, group, -1)[..., :vocab_size]
    target = whole.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    losses = whole.exp().sum(-1).log() - target
    return losses[targets != -100].sum() / total


def ignored_count(logits, targets, total, group, vocab_size):
    return vocabulary_parallel_loss(logits, targets.clamp(min=0), total, group, vocab_size)


PADDED = {name for name, (vocab_size, *_) in CASES.items() if vocab_size % 2}
IGNORING = {name for name, (*_, ignored) in CASES.items() if ignored}


@pytest.mark.parametrize(
    "wrong, fails",
    [(padding_counts, PADDED), (no_maximum, {"extreme"}), (ignored_count, IGNORING)],
)
def test_wrong_losses_are_told_apart(wrong, fails):
    results, failed = launch(run, wrong, ranks=2), set()
    for case in CASES:
        try:
            check(results, case)
        except AssertionError:
            failed.add(case)
    assert failed == fails


def large(group):
    """Chunks, float32 and bfloat16, memory and bytes on a rank's share of a larger vocabulary."""
    tokens, vocab_size = 300, 2048
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, tokens, vocab_size, generator=generator)
    targets = torch.randint(vocab_size, (1, tokens), generator=generator)
    mine = part(logits, group)
    assert mine.numel() > CHUNK_NUMBERS, "more than one chunk"
    ledger = MemoryLedger(nn.Module(), device="cpu")
    with ledger:
        loss = vocabulary_parallel_loss(mine, targets, tokens, group, vocab_size)
        loss.backward()
    sent = group.trace.bytes_sent()
    want = logits.requires_grad_()
    token_weighted_loss(want, targets, tokens).backward()
    torch.testing.assert_close(loss, token_weighted_loss(logits, targets, tokens))
    torch.testing.assert_close(mine.grad, part(want.grad, group).detach(), rtol=1e-4, atol=1e-7)
    half = mine.detach().bfloat16().requires_grad_()
    rounded = vocabulary_parallel_loss(half, targets, tokens, group, vocab_size)
    rounded.backward()
    assert rounded.dtype == torch.float32 and half.grad.dtype == torch.bfloat16
    assert abs(rounded - loss) < 1e-3, "bfloat16 logits, but sums in float32"
    return ledger.peak_bytes / mine.nbytes, sent, tokens


def test_no_rank_ever_holds_or_sends_the_logits():
    ranks = 2
    for held, sent, tokens in launch(large, ranks=ranks):
        assert 2 <= held < 4, "logits and their gradient, and two chunks: the whole is not there"
        assert sent == 2 * 4 * (ranks - 1) * tokens, "two numbers a token"


def refused(group):
    logits, targets = batch(8, 1, 0)
    with pytest.raises(InputError, match=r"2 ranks with 8 logits .* of 17: give each rank 9"):
        vocabulary_parallel_loss(logits, targets, 1, group, 17)


def test_bad_arguments_are_refused():
    launch(refused, ranks=2)


# ---- embedding ----
