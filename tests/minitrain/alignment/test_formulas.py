"""Advantages, losses and estimators: beside enumeration, closed forms and their naive versions."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.alignment import advantages as by
from minitrain.alignment import kl as kls
from minitrain.alignment import policy_loss as losses
from minitrain.alignment import preference as prefer
from minitrain.alignment import reward_model as rm
from minitrain.errors import InputError
from minitrain.ranks.launch import launch

F64 = torch.float64
SIZES = st.tuples(st.integers(1, 5), st.integers(1, 7))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def some_mask(rows: int, length: int, seed: int) -> torch.Tensor:
    """Holes in the middle too; each row has a token."""
    dice = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, length, generator=dice) < 0.6
    mask[torch.arange(rows), torch.randint(length, (rows,), generator=dice)] = True
    return mask.to(F64)


# ---- advantages ----


@settings(max_examples=25, deadline=None)
@given(SIZES, st.integers(0, 99), st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from([0.9, 1]))
def test_gae_is_its_recursion_over_the_tokens_that_count(size, seed, lam, gamma):
    mask, r, v = some_mask(*size, seed), drawn(*size, seed=seed), drawn(*size, seed=seed + 1)
    for ours, naive in zip(by.gae(r, v, mask, gamma, lam), by.gae_naive(r, v, mask, gamma, lam)):
        torch.testing.assert_close(ours, naive)
    row = mask[0].bool()  # beside a sum written out
    own_r, own_v = r[0][row], torch.cat([v[0][row], torch.zeros(1, dtype=F64)])
    deltas = own_r + gamma * own_v[1:] - own_v[:-1]
    for t, got in enumerate(by.gae(r, v, mask, gamma, lam)[0][0][row]):
        want = sum((gamma * lam) ** (u - t) * deltas[u] for u in range(t, len(deltas)))
        torch.testing.assert_close(got, want)


def test_gae_between_return_and_temporal_difference():
    r, v, mask = drawn(2, 5), drawn(2, 5, seed=1), torch.ones(2, 5, dtype=F64)
    returns = r.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(by.gae(r, v, mask, lam=1.0)[0], returns - v)
    torch.testing.assert_close(by.gae(r, v, mask, lam=1.0)[1], returns)
    after = torch.cat([v[:, 1:], torch.zeros(2, 1, dtype=F64)], dim=1)
    torch.testing.assert_close(by.gae(r, v, mask, lam=0.0)[0], r + after - v)


def test_whitening():
    x = torch.tensor([[1.0, 2, 3], [4, 5, 9]], dtype=F64)
    mask = torch.tensor([[1.0, 1, 0], [1, 1, 0]], dtype=F64)
    white, chosen = by.whiten(x, mask), x[mask.bool()]
    torch.testing.assert_close(white[mask.bool()], (chosen - 3) / chosen.std())
    assert (white[mask == 0] == 0).all()
    kept = by.whiten(x, mask, shift_mean=False)[mask.bool()]
    torch.testing.assert_close(kept.mean(), torch.tensor(3.0, dtype=F64))
    with pytest.raises(InputError, match="needs 2 or more"):
        by.whiten(x[:1, :1], mask[:1, :1])


def test_whitening_over_ranks_is_that_of_one_process():
    x, mask = drawn(6, 4), some_mask(6, 4, seed=2)

    def part(group):
        mine = slice(3 * group.rank, 3 * group.rank + 3)
        return by.whiten(x[mine], mask[mine], all_reduce=group.all_reduce)

    torch.testing.assert_close(torch.cat(list(launch(part, ranks=2))), by.whiten(x, mask))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 99))
def test_group_advantages(prompts, size, seed):
    rewards = drawn(prompts * size, seed=seed)
    for start in range(0, len(rewards), size):
        own, rest = rewards[start : start + size], slice(start, start + size)
        grpo, dr, rloo = (
            f(rewards, size)[rest]
            for f in (by.grpo_advantages, by.dr_grpo_advantages, by.rloo_advantages)
        )
        torch.testing.assert_close(dr, own - own.mean())
        torch.testing.assert_close(grpo, (own - own.mean()) / (own.std() + 1e-4))
        torch.testing.assert_close(rloo, dr * size / (size - 1))


def test_a_group_that_agrees_teaches_nothing():
    assert (by.grpo_advantages(torch.tensor([1.0, 1, 1, 0, 0, 0]), 3) == 0).all()
    with pytest.raises(InputError, match="no other answer"):
        by.grpo_advantages(torch.ones(4), 1)
    with pytest.raises(InputError, match="cannot be split"):
        by.rloo_advantages(torch.ones(5), 2)


def test_leaving_itself_out_is_unbiased():
    """Over all samples of two outcomes: RLOO's mean gradient is the true one, Dr. GRPO's half."""
    p, reward = torch.tensor([0.3, 0.7], dtype=F64), torch.tensor([1.0, 0.0], dtype=F64)
    score = torch.eye(2, dtype=F64) - p  # gradient of log p with respect to the logits
    true = (p * reward) @ score
    for f, scale in ((by.rloo_advantages, 1.0), (by.dr_grpo_advantages, 0.5)):
        found = torch.zeros(2, dtype=F64)
        for a in range(2):
            for b in range(2):
                advantages = f(reward[[a, b]], 2)
                found += p[a] * p[b] * (advantages[:, None] * score[[a, b]]).mean(0)
        torch.testing.assert_close(found, scale * true)


# ---- policy and value ----


def test_the_clip_in_four_quadrants():
    ratio = torch.tensor([0.5, 1.0, 1.5, 4.0], dtype=F64).repeat(2, 1)
    advantages = torch.tensor([[2.0], [-2.0]], dtype=F64).expand(2, 4)
    logp = ratio.log().requires_grad_()
    old = torch.zeros_like(ratio)
    loss = losses.policy_loss(logp, old, advantages, 0.2, dual_clip=3.0)
    naive = losses.policy_loss_naive(logp.detach(), old, advantages, 0.2, dual_clip=3.0)
    torch.testing.assert_close(loss, naive)
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    assert (gradient != 0).tolist() == [[True, True, False, False], [False, True, True, False]]
    stopped = losses.clipped(logp, old, advantages, 0.2)
    assert stopped.tolist() == [[False, False, True, True], [True, False, False, False]]
    with pytest.raises(InputError, match="dual_clip above"):
        losses.policy_loss(logp, old, advantages, 0.2, dual_clip=1.1)


@settings(max_examples=20, deadline=None)
@given(SIZES, st.integers(0, 99), st.sampled_from([None, 0.28]), st.sampled_from([None, 1.5]))
def test_the_loss_is_the_naive_one(size, seed, high, dual):
    logp, old, advantages = (drawn(*size, seed=seed + i) for i in range(3))
    given_ = (logp, old, advantages, 0.2, high, dual)
    torch.testing.assert_close(losses.policy_loss(*given_), losses.policy_loss_naive(*given_))


def test_the_value_moves_at_most_a_clip():
    old, returns = torch.zeros(1, 3, dtype=F64), torch.tensor([[1.0, 1.0, -1.0]], dtype=F64)
    values = torch.tensor([[0.1, 0.5, 0.5]], dtype=F64, requires_grad=True)
    loss = losses.value_loss(values, old, returns, clip=0.2)
    torch.testing.assert_close(loss, 0.5 * torch.tensor([[0.81, 0.64, 2.25]], dtype=F64))
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    assert gradient[0, 1] == 0 and gradient[0, 2] == 1.5


def test_four_ways_to_average():
    """Losses of 1, 1, 1, 1 and 3, over answers of 4 and 1 tokens."""
    loss = torch.tensor([[1.0, 1, 1, 1], [3, 9, 9, 9]], dtype=F64)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]], dtype=F64)
    totals = losses.Totals.of(mask)
    found = {n: f(loss, mask, totals).item() for n, f in losses.AGGREGATIONS.items()}
    assert found == {"grpo": 2.0, "dapo": 1.4, "bnpo": 1.4, "dr_grpo": 0.875}


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo"])
def test_microbatches_add_up_to_the_batch(name):
    loss, mask, aggregate = drawn(6, 5), some_mask(6, 5, seed=4), losses.AGGREGATIONS[name]
    totals = losses.Totals.of(mask)
    for cuts in ((0, 3, 6), (0, 1, 2, 6)):
        parts = [slice(a, b) for a, b in pairwise(cuts)]
        assert losses.Totals.of(*(mask[p] for p in parts)) == totals
        found = sum(aggregate(loss[p], mask[p], totals) for p in parts)
        torch.testing.assert_close(found, aggregate(loss, mask, totals))


def test_bnpo_depends_on_the_cut():
    loss, mask = drawn(6, 5), some_mask(6, 5, seed=4)
    totals, bnpo = losses.Totals.of(mask), losses.AGGREGATIONS["bnpo"]
    halves = bnpo(loss[:3], mask[:3], totals) + bnpo(loss[3:], mask[3:], totals)
    assert abs(halves - bnpo(loss, mask, totals)) > 1e-3


# ---- KL ----


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 9), st.integers(0, 99))
def test_estimators_by_enumeration(size, seed):
    logits, ref = drawn(size, seed=seed), drawn(size, seed=seed + 1)
    leaf = logits.clone().requires_grad_()
    kl = kls.kl_divergence(leaf, ref)
    (forward,) = torch.autograd.grad(kl, leaf)
    (backward,) = torch.autograd.grad(kls.kl_divergence(ref, leaf), leaf)
    found = {n: kls.expected(f, logits, ref) for n, f in kls.ESTIMATORS.items()}
    for name in ("k1", "k3", "ratio k3", "straight-through k3"):
        assert math.isclose(found[name].mean, kl.item(), abs_tol=1e-9)
    wanted = {"k1": 0 * forward, "k2": forward, "k3": backward}
    wanted |= {"ratio k3": forward, "straight-through k3": forward}
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name].gradient, gradient, msg=name)


def test_rewards_of_tokens_sum_to_the_answers():
    logp, ref = drawn(3, 6), drawn(3, 6, seed=1)
    mask = torch.tensor([[0, 1, 1, 1, 0, 0], [1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=F64)
    scores = drawn(3, seed=5)
    rewards = kls.per_token_rewards(scores, logp, ref, mask, beta=0.3)
    torch.testing.assert_close(rewards.sum(1), scores - 0.3 * ((logp - ref) * mask).sum(1))
    assert kls.last_token(mask).tolist() == [3, 2, 5] and (rewards[mask == 0] == 0).all()
    with pytest.raises(InputError, match="no token that counts"):
        kls.last_token(mask * 0)


def test_the_controller_moves_beta_by_a_fifth_a_horizon():
    control = kls.AdaptiveKL(beta=1.0, target=6.0, horizon=100)
    assert math.isclose(control.update(60.0, 100), 1.2)
    assert math.isclose(control.update(0.0, 50), 1.2 * 0.9)
    assert math.isclose(control.update(6.0, 100), 1.2 * 0.9)


# ---- pairs ----


def test_log_probabilities_are_sums_of_the_next_tokens():
    logits, tokens = drawn(2, 5, 7), torch.randint(7, (2, 5))
    logp = prefer.log_probabilities(logits, tokens)
    want = [[logits[b, t].log_softmax(0)[tokens[b, t + 1]] for t in range(4)] for b in range(2)]
    torch.testing.assert_close(logp, torch.tensor(want, dtype=F64))
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]])
    logp[mask == 0] = -math.inf  # what lies behind the answer does not matter
    assert prefer.sequence_log_probability(logp, mask).isfinite().all()


def test_dpo_begins_at_log_2_and_its_gradient_is_sigmoid():
    x = drawn(4).requires_grad_()
    at_start = prefer.dpo_loss(x, x.detach() - 1, x.detach(), x.detach() - 1, beta=0.5)
    torch.testing.assert_close(at_start, torch.full((4,), math.log(2), dtype=F64))
    (gradient,) = torch.autograd.grad(at_start.sum(), x)
    torch.testing.assert_close(gradient, torch.full((4,), -0.25, dtype=F64))
    with pytest.raises(InputError, match="beta above 0"):
        prefer.dpo_loss(x, x, x, x, beta=0.0)


def test_cdpo_stops_and_robust_dpo_is_unbiased():
    """Where each loss has its least margin; and the mean of the robust loss over flips."""
    e, beta, zero = 0.2, 0.5, torch.zeros((), dtype=F64)
    best = torch.tensor(math.log((1 - e) / e) / beta, dtype=F64, requires_grad=True)
    loss = prefer.dpo_loss(best, zero, zero, zero, beta, label_smoothing=e)
    assert abs(torch.autograd.grad(loss, best)[0]) < 1e-12
    c, r, ref_c, ref_r = drawn(4, 3)
    kept = prefer.robust_dpo_loss(c, r, ref_c, ref_r, beta, e)
    turned = prefer.robust_dpo_loss(r, c, ref_r, ref_c, beta, e)
    want = prefer.dpo_loss(c, r, ref_c, ref_r, beta)
    torch.testing.assert_close((1 - e) * kept + e * turned, want)
    torch.testing.assert_close(prefer.ipo_loss(c, r, c - 1.0, r, 0.5), torch.zeros(3, dtype=F64))


def test_the_reward_models_loss():
    chosen, rejected = drawn(5), drawn(5, seed=1)
    loss = rm.reward_model_loss(chosen, rejected)
    want = -((chosen - rejected).sigmoid()).log().mean()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(rm.reward_model_loss(chosen + 7, rejected + 7), want)
    centred = rm.reward_model_loss(chosen, rejected, centering=0.5)
    torch.testing.assert_close(centred - loss, 0.5 * (chosen + rejected).square().mean())
    margin = rm.reward_model_loss(chosen, rejected, margin=chosen - rejected)
    torch.testing.assert_close(margin, torch.tensor(math.log(2), dtype=F64))
