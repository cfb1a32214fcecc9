"""Bugs that shipped in well-known libraries: each fails a check that ours passes, by name."""

from __future__ import annotations

import math

import pytest
import torch

from minitrain.alignment import advantages as by
from minitrain.alignment import kl as kls
from minitrain.alignment import policy_loss as losses
from minitrain.alignment import preference as prefer
from minitrain.alignment import rollouts as roll
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

F64 = torch.float64
MODEL = build(ModelConfig(16, 16, 1, 2, 2, ffn_size=32), dtype=F64, seed=1)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


MASK = torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=F64)


# ---- one check a bug: it raises AssertionError where the property does not hold ----


def removes_the_mean(whiten):
    white = whiten(drawn(3, 4) + 2, MASK)
    assert abs(float(white[MASK.bool()].mean())) < 1e-6


def whitens_once(whiten):
    """What is white already stays: a second normalisation after it would be a no-op."""
    white = whiten(drawn(3, 4) + 2, MASK)
    assert abs(float(white[MASK.bool()].std()) - 1) < 1e-3


def pulls_back_from_afar(estimator):
    """The policy has put a token at e^-8 that the reference holds likely: its gradient is large."""
    logp = torch.tensor([-8.0], dtype=F64, requires_grad=True)
    ref_logp = torch.tensor([-1.0], dtype=F64)
    (gradient,) = torch.autograd.grad(estimator(logp, ref_logp).sum(), logp)
    assert abs(gradient.item()) >= 7


def descends_the_kl(estimator):
    logits, ref = drawn(8), drawn(8, seed=1)
    leaf = logits.clone().requires_grad_()
    (true,) = torch.autograd.grad(kls.kl_divergence(leaf, ref), leaf)
    assert torch.allclose(kls.expected(estimator, logits, ref).gradient, true)


def score_reaches_the_end(rewards_of):
    """gamma = 1, lambda < 1: the return at the last real token is the answer's score."""
    scores = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    zero = torch.zeros(3, 4, dtype=F64)
    rewards = rewards_of(scores, zero, zero, MASK, 0.1)
    returns = by.gae(rewards, zero, MASK, lam=0.5)[1]
    ends = kls.last_token(MASK)
    assert returns[torch.arange(3), ends].tolist() == [1.0, 2.0, 3.0]


def penalises_kl(rewards_of):
    logp, zero = torch.full((3, 4), -1.0, dtype=F64), torch.zeros(3, dtype=F64)
    assert (rewards_of(zero, logp, logp - 1, MASK, 0.1)[MASK.bool()] < 0).all()


def every_answer_weighs_the_same(aggregate):
    loss, mask = torch.tensor([[1.0, 1, 1, 1], [3, 0, 0, 0]]), torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0]])  # fmt: skip
    assert aggregate(loss, mask, losses.Totals.of(mask)).item() == 2.0


def ignores_padding(advantages_of):
    rewards, values = drawn(3, 4), drawn(3, 4, seed=1)
    other = torch.where(MASK.bool(), rewards, 99.0), torch.where(MASK.bool(), values, 7.0)
    found = [advantages_of(*pair, MASK)[MASK.bool()] for pair in ((rewards, values), other)]
    assert torch.equal(*found)


def measures_answers_only(metric):
    """Padding that the model finds unlikely changes no KL."""
    logp, ref = drawn(3, 4), drawn(3, 4, seed=1)
    padded = torch.where(MASK.bool(), logp, 50.0)
    assert math.isclose(metric(logp, ref, MASK), metric(padded, ref, MASK))


def compares_answers_to_one_prompt(rewards_in_order):
    """Prompt 0 is easy, prompt 1 hard, and all answers to one earn the same: no advantage."""
    rewards = torch.tensor([0.9, 0.1], dtype=F64)[rewards_in_order(2, 3)]
    assert by.dr_grpo_advantages(rewards, 3).abs().max() < 1e-12


def learns_the_end(mask_of):
    """Answers [5, END] and [6, 7, END] after a prompt of one token."""
    rows = torch.tensor([[3, 5, 0, 0], [3, 6, 7, 0]])
    assert mask_of(rows).tolist() == [[1, 1, 0], [1, 1, 1]]


def padding_moves_nothing(log_probabilities_of):
    """The same answer in a longer batch."""
    short = [roll.Answer([5, 6], True)]
    both = [*short, roll.Answer([5, 6, 7, 8, 9], True)]
    alone, beside = (log_probabilities_of([[3, 4]] * len(a), a)[0] for a in (short, both))
    assert torch.allclose(alone, beside[: len(alone)])


def first_ratio_is_1(temperature_of_training):
    """Sampled at temperature 2: the ratio of policy to sampler is 1 for every token."""
    rows = roll.as_rows([[3, 4]], [roll.Answer([5, 6, 7], False)], 0)
    sampled = prefer.log_probabilities(MODEL(rows.tokens) / 2.0, rows.tokens) * rows.mask
    again = roll.answer_log_probabilities(MODEL, rows, temperature_of_training)
    assert torch.allclose((again - sampled).exp(), torch.ones_like(sampled))


def prefers_by_whole_answers(summary):
    """The reward of a policy is beta times the log ratio of the *sequence*."""
    logp, ref = drawn(3, 4), drawn(3, 4, seed=1)
    got = summary(logp, MASK) - summary(ref, MASK)
    assert torch.allclose(got, ((logp - ref) * MASK).sum(1))


# ---- the bugs ----


def torchtune_whiten_adds_the_mean(x, mask):
    mean = (x * mask).sum() / mask.sum()
    variance = ((x - mean).square() * mask).sum() / (mask.sum() - 1)
    return (x - mean) * torch.rsqrt(variance + 1e-8) + mean  # shift_mean, inverted


def axon_normalises_twice(x, mask):
    white = by.whiten(x, mask)
    own = white.std(dim=1, keepdim=True)  # of rows with their padding, after the batch's
    return (white - white.mean(dim=1, keepdim=True)) / (own + 1e-4)


def verl_k3_clamped(logp, ref_logp):
    return kls.k3(logp, ref_logp).clamp(-10, 10)


def trl_score_one_past_the_end(scores, logp, ref_logp, mask, beta):
    rewards = -beta * (logp - ref_logp) * mask
    after = (kls.last_token(mask) + 1).clamp(max=mask.shape[1] - 1)
    rewards[torch.arange(len(mask)), after] += scores
    return rewards


def blog_adds_the_penalty(scores, logp, ref_logp, mask, beta):
    return kls.per_token_rewards(scores, logp, ref_logp, mask, -beta)


def minillm_counts_padding(rewards, values, mask):
    return by.gae(rewards, values, torch.ones_like(mask))[0]


def online_dpo_mean_over_padding(logp, ref, mask):
    return float((logp - ref).mean())


def our_metric(logp, ref, mask):
    return float((kls.k1(logp, ref) * mask).sum() / mask.sum())


def r1_v_interleaves_prompts(prompts, n):
    return [number for _ in range(n) for number in range(prompts)]


def our_order(prompts, n):
    return [row[0] for row in roll.repeat_prompts([[i] for i in range(prompts)], n)]


def trl_masks_the_end_as_padding(rows):
    return (rows[:, 1:] != 0).long()  # pad_token = end_token


def our_mask(rows):
    answers = [roll.Answer([5], True), roll.Answer([6, 7], True)]
    found = roll.as_rows([[3], [3]], answers, 0)
    assert torch.equal(found.tokens, rows)
    return found.mask.long()


def openrlhf_reads_left_padding(prompts, answers):
    """Padded on the left, and read and counted as if padding were text."""
    rows = roll.as_rows(prompts, answers, 0)
    lengths = [len(p) + len(a.tokens) + a.ended for p, a in zip(prompts, answers)]
    width = rows.tokens.shape[1]
    tokens = torch.stack([row.roll(width - n) for row, n in zip(rows.tokens, lengths)])
    logp = prefer.log_probabilities(MODEL(tokens), tokens)
    return [row[width - n + 1 :] for row, n in zip(logp, lengths)]


def our_log_probabilities(prompts, answers):
    rows = roll.as_rows(prompts, answers, 0)
    return [
        logp[mask.bool()]
        for logp, mask in zip(roll.answer_log_probabilities(MODEL, rows), rows.mask)
    ]


def trl_averages_log_probabilities(logp, mask):
    return (logp * mask).sum(1) / mask.sum(1)


GALLERY = [  # check, ours, the bug
    (removes_the_mean, by.whiten, torchtune_whiten_adds_the_mean),
    (whitens_once, by.whiten, axon_normalises_twice),
    (pulls_back_from_afar, kls.k3_straight_through, verl_k3_clamped),
    (descends_the_kl, kls.k3_by_ratio, kls.k3),  # TRL's default until 2026-07
    (score_reaches_the_end, kls.per_token_rewards, trl_score_one_past_the_end),
    (penalises_kl, kls.per_token_rewards, blog_adds_the_penalty),
    (every_answer_weighs_the_same, losses.mean_of_means, losses.mean_in_microbatch),  # TRL 3187
    (ignores_padding, lambda r, v, m: by.gae(r, v, m)[0], minillm_counts_padding),
    (measures_answers_only, our_metric, online_dpo_mean_over_padding),
    (compares_answers_to_one_prompt, our_order, r1_v_interleaves_prompts),
    (learns_the_end, our_mask, trl_masks_the_end_as_padding),
    (padding_moves_nothing, our_log_probabilities, openrlhf_reads_left_padding),
    (first_ratio_is_1, 2.0, 1.0),  # vLLM V1: raw, not processed, log-probabilities
    (prefers_by_whole_answers, prefer.sequence_log_probability, trl_averages_log_probabilities),
]  # fmt: skip


@pytest.mark.parametrize("check, ours, bug", GALLERY, ids=[check.__name__ for check, *_ in GALLERY])
def test_ours_passes_and_the_bug_fails(check, ours, bug):
    check(ours)
    with pytest.raises(AssertionError):
        check(bug)


def test_adams_epsilon_is_another_one_in_tensorflow():
    """PPO's first reference used TF's Adam: its eps is torch's times sqrt(1 - beta2^t)."""
    weights = [torch.ones(3, dtype=F64, requires_grad=True) for _ in range(2)]
    eps, beta2 = 1e-5, 0.999
    m = v = torch.zeros(3, dtype=F64)
    by_hand, gradient = torch.ones(3, dtype=F64), 1e-5 * drawn(3)
    optimizers = [torch.optim.Adam([w], lr=1e-3, eps=eps) for w in weights]
    for t in range(1, 5):
        optimizers[0].param_groups[0]["eps"] = eps / math.sqrt(1 - beta2**t)
        for w, optimizer in zip(weights, optimizers):
            w.grad = gradient.clone()
            optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, beta2 * v + (1 - beta2) * gradient.square()
        rate = 1e-3 * math.sqrt(1 - beta2**t) / (1 - 0.9**t)
        by_hand = by_hand - rate * m / (v.sqrt() + eps)  # TensorFlow's formula
    assert torch.allclose(weights[0], by_hand, atol=1e-12)
    assert (weights[1] - by_hand).abs().max() > 1e-5
