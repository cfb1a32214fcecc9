"""Compressors as hooks of DDP: beside torch's, beside the mean, and what feedback keeps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.parallel.compressed import budget
from minitrain.parallel.compressed.bits import Blocks
from minitrain.parallel.compressed.hook import Cast, ErrorFeedback, Exact, without_feedback
from minitrain.parallel.compressed.powersgd import (
    PowerSGD,
    low_rank_naive,
    orthogonalize,
    power_step,
)
from minitrain.parallel.compressed.quantized import Quantized, all_reduce_at_each_hop
from minitrain.parallel.compressed.signs import MajorityVote, OneBitAdam, majority_naive
from minitrain.parallel.compressed.sparse import RandomK, TopK, sparse_mean_naive, top_places
from minitrain.parallel.ddp import DDP
from minitrain.ranks.launch import launch


def net(dtype=torch.float64):
    torch.manual_seed(3)
    layers = nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 9), nn.Tanh(), nn.Linear(9, 40)
    return nn.Sequential(*layers).to(dtype)


def gradients(group, model, wrapped, steps, lr=0.05):
    """Each step's gradients, with the weights moved in between."""
    found = []
    for step in range(steps):
        torch.manual_seed(10 * step + group.rank)
        x, y = torch.randn(7, 12), torch.randn(7, 40)
        dtype = next(model.parameters()).dtype
        model.zero_grad()
        F.mse_loss(wrapped(x.to(dtype)), y.to(dtype)).backward()
        found.append([p.grad.clone() for p in model.parameters()])
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
    return found


def ours(group, hook, steps=3, dtype=torch.float64, bucket_bytes=2**20):
    model = net(dtype)
    wrapped = DDP(model, group, bucket_bytes, hook=hook)
    group.trace.ops.clear()
    return gradients(group, model, wrapped, steps), group.trace.bytes_sent()


def torchs(group, state, hook, steps=3, dtype=torch.float64):
    model = net(dtype)
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(state, hook)
    return gradients(group, model, wrapped, steps)


def differ(ours, theirs) -> float:
    return max(
        (a - b).abs().max().item() for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y)
    )


def beside_cast(group):
    mine, sent = ours(group, Cast(torch.float16), dtype=torch.float32)
    theirs = torchs(group, None, fp16_compress_hook, dtype=torch.float32)
    return differ(mine, theirs), sent, ours(group, None, dtype=torch.float32)[1]


def test_a_cast_is_torchs_bit_for_bit_at_half_the_bytes():
    for error, sent, whole in launch(beside_cast, ranks=2):  # of three the order of a sum differs
        assert error == 0 and 2 * sent == whole


def beside_power(group):
    found = {}
    for rank, warm, feedback in ((1, True, True), (4, True, True), (2, True, False)):
        state = PowerSGDState(None, rank, 2, use_error_feedback=feedback, warm_start=warm)
        theirs = torchs(group, state, powerSGD_hook, steps=6)
        mine, _ = ours(group, Started(rank, 2, warm, feedback), steps=6)
        found[rank, warm, feedback] = differ(mine, theirs)
    return found


class Started(PowerSGD):
    """From torch's first Q: its state seeds torch's generator with the first draw of numpy's."""

    def _qs(self, bucket, matrices):
        if bucket in self.kept_qs:
            return super()._qs(bucket, matrices)
        torch.manual_seed(np.random.RandomState(0).randint(1_000_000_000))
        return [torch.randn(m.shape[1], min(self.rank, *m.shape), dtype=m.dtype) for m in matrices]


def test_powersgd_is_torchs():
    for found in launch(beside_power, ranks=3):
        assert max(found.values()) < 1e-14, found


def full_rank(group):
    exact, _ = ours(group, Exact())
    plain, whole = ours(group, None)
    full, _ = ours(group, PowerSGD(rank=64, warmup=0, least_saving=0.0))
    low, sent = ours(group, PowerSGD(rank=1, warmup=0), steps=1)
    return differ(exact, plain), differ(full, plain), differ(low, plain[:1]), sent, whole


@pytest.mark.parametrize("ranks", [1, 3])
def test_powersgd_of_full_rank_is_the_mean_gradient(ranks):
    for exact, full, low, sent, whole in launch(full_rank, ranks=ranks):
        assert exact < 1e-15 and full < 1e-12 and low > 1e-3
        matrices, vectors = (20 + 12) + (9 + 20) + (40 + 9), 20 + 9 + 40  # rank 1
        assert sent == 8 * (matrices + vectors) * 2 * (ranks - 1) // ranks
        assert whole == 3 * 8 * (240 + 180 + 360 + 69) * 2 * (ranks - 1) // ranks


def steps_of_power(group):
    torch.manual_seed(group.rank)
    own = torch.randn(30, 12, dtype=torch.float64) @ torch.diag(0.5 ** torch.arange(12.0).double())
    mean, q = group.all_reduce(own.clone(), op="avg"), torch.randn(12, 2).double()
    group.all_reduce(q, op="avg")
    errors = []
    for _ in range(12):
        p, q = power_step(group, own, q)
        errors.append((mean - p @ q.T).norm().item())
    best = (mean - low_rank_naive(group, own.clone(), 2)).norm().item()
    mine = orthogonalize(group.all_reduce(own @ q, op="avg"))
    wrong = group.all_reduce(mine @ (own.T @ orthogonalize(own @ q)).T, op="avg")
    return errors, best, (mean - wrong).norm().item()


def test_power_steps_come_down_to_the_error_of_the_svd():
    for errors, best, wrong in launch(steps_of_power, ranks=3):
        assert errors[-1] == pytest.approx(best, rel=1e-3) and errors[0] > best
        assert all(after <= before + 1e-12 for before, after in pairwise(errors))
        assert wrong > 1.05 * best, "a P of the rank's own spans other columns than the mean's"


def test_columns_without_a_direction_do_no_harm():
    matrix = torch.outer(torch.arange(1.0, 9), torch.arange(1.0, 6))  # of rank 1
    p = orthogonalize(matrix @ torch.randn(5, 3))
    assert torch.allclose(p.T @ p, torch.eye(3), atol=1e-6)
    assert torch.allclose(p @ (matrix.T @ p).T, matrix, rtol=1e-5)
    assert torch.isfinite(orthogonalize(torch.zeros(8, 3))).all()


# ---- formats ----


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("block", [8, 64])
def test_blocks_are_off_by_half_a_step_and_take_their_bits(bits, block):
    form, rows = Blocks(bits, block), torch.randn(3, 5 * block) * torch.logspace(-9, 9, 5 * block)
    rows[0, :block] = 0
    messages = form.encode(rows)
    assert messages.shape[1] == 5 * block * bits // 8 + 5 * 4 and messages.dtype == torch.uint8
    blocks, error = rows.view(3, 5, block), (form.decode(messages) - rows).view(3, 5, block)
    if bits == 1:
        mean = blocks.abs().mean(dim=2, keepdim=True)
        assert torch.allclose(error + blocks, mean * torch.where(blocks >= 0, 1.0, -1.0))
    else:
        step = blocks.abs().amax(dim=2, keepdim=True) / (2 ** (bits - 1) - 1)
        assert (error.abs() <= 0.5001 * step).all()


def twice(group, size):
    torch.manual_seed(group.rank)
    vector = torch.randn(size)
    before, form = vector.clone(), Blocks(8, 64)
    mean = group.all_reduce(vector.clone(), op="avg")
    group.trace.ops.clear()
    once = Quantized(8, 64).start(group, "g", vector).wait()
    sent = group.trace.bytes_sent()
    hops = all_reduce_at_each_hop(group, vector, form)
    assert torch.equal(vector, before) and group.trace.bytes_sent() == 2 * sent
    return (once - mean).norm().item(), (hops - mean).norm().item(), once, hops, sent


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_any_size_arrives_the_same_on_all_ranks(size):
    results = launch(twice, size, ranks=3)
    for once, hops, *values, _ in results:
        assert max(once, hops) < 0.02 * size**0.5
        assert all(torch.equal(a, b) for a, b in zip(values, results[0][2:4]))


def test_quantizing_at_each_hop_loses_more_and_the_more_the_longer_the_ring():
    ratio = {}
    for ranks in (2, 8):
        once, hops, *_, sent = launch(twice, 2**13, ranks=ranks)[0]
        ratio[ranks] = hops / once
        assert sent == 2 * (ranks - 1) * (2**13 + 2**13 // 64 * 4) // ranks
    assert ratio[8] > 1.2 and ratio[8] > 1.2 * ratio[2]


@given(count=st.integers(1, 700), share=st.floats(0.05, 0.6), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_budget_is_kept_and_spent_better_than_on_the_largest_numbers(count, share, seed):
    torch.manual_seed(seed)
    vector = torch.randn(count) * torch.logspace(0, -3, count)
    least, given_up = budget.plan_bytes(-(-count // budget.BLOCK)), vector.norm()
    limit = max(least, round(4 * count * share))
    best, naive = budget.WaterFilling(), budget.LargestOnly()
    message, largest = best.encode(vector, limit), naive.encode(vector, limit)
    error = (best.decode(message, count) - vector).norm()
    assert message.dtype == torch.uint8 and len(message) <= limit and error <= 1.01 * given_up
    assert len(largest) <= limit
    assert (naive.decode(largest, count) != 0).sum() == min(limit // 8, count)
    if limit > least + 2 * count // 8 + 99:
        assert error < 0.5 * given_up


def test_levels_are_the_normal_distributions_and_blocks_of_zeros_cost_nothing():
    draws = torch.special.ndtri((torch.arange(2**16).double() + 0.5) / 2**16)
    for bits, share in zip(budget.WIDTHS[1:], budget.DISTORTION[1:]):
        levels = budget.levels(bits).double()
        nearest = torch.bucketize(draws, (levels[1:] + levels[:-1]) / 2)
        assert (draws - levels[nearest]).square().mean() == pytest.approx(share.item(), rel=2e-3)
        means = torch.stack([draws[nearest == code].mean() for code in range(2**bits)])
        assert torch.allclose(means, levels, atol=2e-3)
    vector = torch.zeros(640)
    vector[64:128] = torch.randn(64)
    short = budget.WaterFilling().encode(vector, 4 + 3 + 1 + 64 * 4 // 8)
    decoded = budget.WaterFilling().decode(short, 640)
    assert torch.equal(decoded[128:], vector[128:]) and decoded[:64].abs().sum() == 0
    assert (decoded - vector).norm() < 0.2 * vector.norm()
    with pytest.raises(InputError, match="the plan alone"):
        budget.WaterFilling().encode(vector, 6)


# ---- feedback ----


def whole_numbers(group, make):
    """The sum of what was sent, with the ranks' mean residual, beside the sum of gradients."""
    hook, sent, total = make(), torch.zeros(40).double(), torch.zeros(40).double()
    for step in range(6):
        torch.manual_seed(7 * step + group.rank)
        vector = torch.randint(-99, 99, (40,)).double() * group.size
        total += group.all_reduce(vector.clone(), op="avg")
        sent += hook.start(group, "g", vector).wait()
    left = sum(memory.residuals["g"] for memory in [hook.memory])
    return sent, total, group.all_reduce(left.clone(), op="avg")


@pytest.mark.parametrize("make", [lambda: TopK(0.1), lambda: RandomK(0.1)])
def test_what_was_sent_and_the_residual_are_the_gradient_exactly(make):
    for sent, total, left in launch(whole_numbers, make, ranks=2):
        assert torch.equal(sent + left, total) and not torch.equal(sent, total)


def quantized_sums(group, bits):
    hook, sent, total = Quantized(bits, 8, feedback=True), torch.zeros(40), torch.zeros(40)
    for step in range(50):
        torch.manual_seed(7 * step + group.rank)
        vector = torch.randn(40)
        total += group.all_reduce(vector.clone(), op="avg")
        sent += hook.start(group, "g", vector).wait()
    left = hook.sent.residuals["g"].flatten()[:40]
    served = hook.summed.residuals["g"].flatten()
    everyone = group.all_gather(torch.empty(group.size * served.numel()), served)[:40]
    return sent, total, group.all_reduce(left.clone(), op="avg") + everyone


@pytest.mark.parametrize("bits", [1, 4])
def test_both_sides_of_a_quantized_sum_keep_their_error(bits):
    for sent, total, left in launch(quantized_sums, bits, ranks=2):
        assert torch.allclose(sent + left, total, atol=1e-4) and left.norm() > 1e-3


def signs_of(vector):
    return vector.abs().mean() * vector.sign()


@pytest.mark.parametrize("send, arrives", [(without_feedback, False), (ErrorFeedback(), True)])
def test_signs_leave_a_line_only_with_feedback(send, arrives):
    """ε|x + y| + |x - y|: every sign is ±(1, -1), so x + y never changes (arXiv:1901.09847, 3.2)."""
    point = torch.tensor([1.0, 1.3], dtype=torch.float64)
    for step in range(4000):
        plus, minus = (1 if x >= 0 else -1 for x in (point.sum(), point[0] - point[1]))
        gradient = torch.tensor([0.5 * plus + minus, 0.5 * plus - minus]).double()
        point = point - 0.5 / (step + 1) ** 0.5 * send("x", gradient, signs_of)
    assert (point.abs().max().item() < 0.05) == arrives
    assert arrives or point.sum().item() == pytest.approx(2.3)


def test_a_scaled_random_choice_diverges_with_feedback():
    """Unbiased means k/P of the time P/k as large: the residual then is (1 - P/k) of it, and grows."""
    torch.manual_seed(0)
    memory, vector = ErrorFeedback(), torch.ones(100)
    for _ in range(60):
        keep = torch.randperm(100) < 10
        memory("g", vector, lambda g: g * keep * 10)  # noqa: B023
    assert memory.residuals["g"].norm() > 1e6


def sparse(group, fraction):
    torch.manual_seed(group.rank)
    vector = torch.randn(1000)
    naive = sparse_mean_naive(group, vector, round(1000 * fraction))
    group.trace.ops.clear()
    found, sent = [], []
    for hook in (TopK(fraction), RandomK(fraction, feedback=False)):
        found.append(hook.start(group, "g", vector).wait())
        sent.append(group.trace.bytes_sent())
    kept = (found[1] != 0).sum().item()
    return (naive - found[0]).abs().max().item(), kept, sent[0], sent[1] - sent[0], vector


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_of_top_k_grow_with_the_ranks_and_of_random_k_do_not(ranks):
    for error, kept, top, random, vector in launch(sparse, 0.05, ranks=ranks):
        assert error < 1e-6 and kept == 50
        assert top == (ranks - 1) * 8 * 50 and random == 2 * (ranks - 1) * 4 * 50 // ranks
        assert set(top_places(vector, 50).tolist()) == set(vector.abs().argsort()[-50:].tolist())


# ---- signs ----


def voted(group, size):
    torch.manual_seed(group.rank)
    vector = torch.randint(-2, 3, (size,)).float()
    naive = majority_naive(group, vector)
    group.trace.ops.clear()
    return naive, MajorityVote().start(group, "g", vector).wait(), group.trace.bytes_sent()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 200])
def test_the_vote_is_that_of_the_majority(ranks, size):
    for naive, verdict, sent in launch(voted, size, ranks=ranks):
        assert torch.equal(naive, verdict) and set(verdict.tolist()) <= {-1.0, 1.0}
        bits = -(-size // (8 * ranks)) * ranks
        assert sent == 2 * (ranks - 1) * bits // ranks


def one_bit(group, freeze, steps):
    model = net()
    model.register_parameter("unused", nn.Parameter(torch.ones(5).double()))
    goal = net()
    nn.init.normal_(goal[0].weight)
    one = OneBitAdam(model.parameters(), group, lr=3e-3, freeze=freeze, block=8)
    sent, losses = [], []
    for step in range(steps):
        torch.manual_seed(10 * step + group.rank)
        x = torch.randn(16, 12).double()
        loss = F.mse_loss(model(x), goal(x).detach())
        one.zero_grad()
        loss.backward()
        group.trace.ops.clear()
        one.step()
        sent.append(group.trace.bytes_sent())
        losses.append(loss.item())
    return [p.detach().clone() for p in model.parameters()], losses, sent


def plain_adam(group, steps):
    model = net()
    goal = net()
    nn.init.normal_(goal[0].weight)
    wrapped, adam = DDP(model, group), torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        torch.manual_seed(10 * step + group.rank)
        x = torch.randn(16, 12).double()
        adam.zero_grad()
        F.mse_loss(wrapped(x), goal(x).detach()).backward()
        adam.step()
    return [p.detach().clone() for p in model.parameters()]


def both_adams(group):
    return one_bit(group, freeze=20, steps=20)[0], plain_adam(group, 20)


def test_one_bit_adam_is_adam_until_its_variance_freezes():
    for one, adam in launch(both_adams, ranks=2):
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(one[1:], adam, strict=True))


def test_one_bit_adam_learns_on_with_a_bit_and_leaves_unused_parameters():
    (weights, losses, sent), (others, *_) = launch(one_bit, freeze := 20, 150, ranks=2)
    assert all(torch.equal(a, b) for a, b in zip(weights, others))
    assert torch.equal(weights[0], torch.ones(5).double())
    assert sum(losses[-10:]) < 0.5 * sum(losses[freeze : freeze + 10])
    assert sent[freeze - 1] > 8 * sent[freeze], (
        "8-byte gradients, then a bit and half a byte of scale"
    )


# ---- refusals ----


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Cast(torch.float32), "float16 or bfloat16"),
        (lambda: TopK(0), "a share"),
        (lambda: RandomK(1.5), "a share"),
        (lambda: Quantized(bits=3), "1, 2, 4 or 8"),
        (lambda: Quantized(block=12), "a multiple of 8"),
        (lambda: PowerSGD(rank=0), "rank"),
        (lambda: PowerSGD(warmup=-1), "0 or more"),
        (lambda: PowerSGD().start(None, "g", torch.ones(3)), "as a hook of DDP"),
        (lambda: OneBitAdam([nn.Parameter(torch.ones(1))], None, freeze=0), "plain Adam"),
    ],
)
def test_what_cannot_work_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
