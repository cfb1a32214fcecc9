"""Optima that are known: by enumeration, by search, and reached by policies that learn."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from minitrain.alignment import exact
from minitrain.alignment import preference as prefer
from minitrain.alignment import reward_model as rm
from minitrain.errors import InputError

F64 = torch.float64
CHAIN = exact.course_chain()


def small_chain(seed: int = 0) -> exact.WordChain:
    dice = torch.Generator().manual_seed(seed)
    reference = torch.rand(3, 3, generator=dice, dtype=F64)
    reference[0, 2] = 0.0  # a pair that never follows
    rewards = torch.randn(3, generator=dice, dtype=F64)
    return exact.WordChain(reference / reference.sum(1, keepdim=True), rewards, length=4)


@pytest.mark.parametrize("beta", [0.3, 1.0, 5.0])
def test_the_recursion_is_the_sum_over_all_sentences(beta):
    chain = small_chain()
    weights, rewards, ps = [], [], []
    for words in itertools.product(range(3), repeat=4):
        pairs = list(zip((0, *words), words))
        p = math.prod(chain.reference[a, b].item() for a, b in pairs)
        reward = sum(chain.rewards[b].item() for _, b in pairs)
        weights.append(p * math.exp(reward / beta))
        rewards.append(reward)
        ps.append(p)
    best, z = chain.optimum(beta), sum(weights)
    assert math.isclose(best.J, beta * math.log(z))
    assert math.isclose(best.reward, sum(w * r for w, r in zip(weights, rewards)) / z)
    kl = sum(w / z * math.log(w / z / p) for w, p in zip(weights, ps) if p)
    assert math.isclose(best.kl, kl) and math.isclose(best.J, best.reward - beta * best.kl)


def test_the_courses_chain():
    assert int(CHAIN.rewards.sum()) == 18
    found = {beta: CHAIN.optimum(beta) for beta in (2.0, 1.0, 0.5, 0.25)}
    rounded = {b: tuple(round(x, 3) for x in (o.J, o.reward, o.kl)) for b, o in found.items()}
    assert rounded == {
        2.0: (2.610, 3.211, 0.301),
        1.0: (3.282, 4.763, 1.482),
        0.5: (4.983, 8.689, 7.413),
        0.25: (8.456, 14.275, 23.276),
    }
    as_reference = exact.TablePolicy(CHAIN).evaluate(1.0)
    assert round(as_reference.reward, 3) == 2.077 and abs(as_reference.kl) < 1e-6
    with pytest.raises(InputError, match="above 0"):
        CHAIN.optimum(0.0)


def test_no_policy_beats_the_optimum():
    chain = small_chain()
    best = chain.optimum(1.0)
    for seed in range(20):
        noise = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=F64)
        policy = (best.policy.log() + 0.3 * noise).softmax(-1)
        reward, kl = chain.evaluate(policy)
        assert reward - kl < best.J


def test_a_table_that_learns_reaches_the_optimum():
    """k1 in the reward: within 2% of J* after 100 steps of 512 sequences."""
    policy = exact.train_table(CHAIN, steps=100)
    best, found = CHAIN.optimum(1.0), policy.evaluate(1.0)
    assert best.J * 0.98 < found.J < best.J


def test_its_samples_have_its_probabilities():
    policy = exact.TablePolicy(small_chain())
    with torch.no_grad():
        policy.logits += torch.randn(
            policy.logits.shape, generator=torch.Generator().manual_seed(1)
        )
    words = policy.sample(4000, torch.Generator().manual_seed(0))
    want = policy.evaluate(1.0).reward
    assert abs(policy.chain.rewards[words[:, 1:]].sum(1).mean().item() - want) < 0.1
    kl = (policy.log_probabilities(words) - policy.reference_log_probabilities(words)).sum(1)
    assert abs(kl.mean().item() - policy.evaluate(1.0).kl) < 0.1


def test_the_frontier():
    q = 0.1
    for beta, r, kl in ((0.5, 0.451, 0.408), (0.2, 0.943, 1.958), (0.1, 0.9996, 2.298)):
        best, J = exact.tilted(q, beta)
        assert abs(best - r) < 5e-4 and abs(exact.frontier(best, q) - kl) < 5e-4
        assert math.isclose(J, best - beta * exact.frontier(best, q))
    reference, rewards = torch.tensor([0.3, 0.6, 0.1], dtype=F64), torch.tensor([0.0, 0, 1])
    for n, kl in ((1, 0.0), (4, 0.217), (16, 1.416), (64, 2.291)):
        best = exact.best_of_n(reference, rewards, n)
        spent = float(torch.xlogy(best, best / reference).sum())
        assert math.isclose(float(best.sum()), 1.0) and abs(spent - kl) < 5e-4
        assert n == 1 or math.isclose(exact.kl_efficiency(float(best[2]), q, spent), 1.0)
        assert spent <= exact.folklore_kl(n) + 1e-12
    wasteful = torch.tensor([0.9, 0.0, 0.1], dtype=F64)  # moves mass among answers of no reward
    assert (
        exact.kl_efficiency(0.1, q, float(torch.xlogy(wasteful, wasteful / reference).sum())) == 0
    )


def test_best_of_n_by_enumeration():
    reference, rewards = torch.tensor([0.2, 0.3, 0.5], dtype=F64), torch.tensor([1.0, 2.0, 1.0])
    want = torch.zeros(3, dtype=F64)
    for draws in itertools.product(range(3), repeat=3):
        top = max(draws, key=lambda y: rewards[y])  # the first of equals
        want[top] += math.prod(reference[y].item() for y in draws)
    torch.testing.assert_close(exact.best_of_n(reference, rewards, 3), want)


# ---- 32 outcomes, Bradley-Terry labels in expectation ----

BETA, FLIPPED = 0.5, 0.1


def minimiser(loss_of, flipped: float) -> torch.Tensor:
    """The policy at the least expected loss over all pairs, by L-BFGS in float64."""
    chosen, rejected = ~torch.eye(32, dtype=bool), REFERENCE.log()
    a, b = chosen.nonzero().T
    clean = (REWARDS[a] - REWARDS[b]).sigmoid()
    weights = REFERENCE[a] * REFERENCE[b] * ((1 - flipped) * clean + flipped * (1 - clean))
    logits = rejected.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=3000, tolerance_grad=1e-13, tolerance_change=1e-16,
        line_search_fn="strong_wolfe", history_size=50,
    )  # fmt: skip

    def closure():
        optimizer.zero_grad()
        logp, ref = logits.log_softmax(0), REFERENCE.log()
        loss = (weights * loss_of(logp[a], logp[b], ref[a], ref[b])).sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return logits.detach().softmax(0)


DICE = torch.Generator().manual_seed(0)
REFERENCE = torch.randn(32, generator=DICE, dtype=F64).softmax(0)
REWARDS = torch.randn(32, generator=DICE, dtype=F64)
BEST = (REFERENCE.log() + REWARDS / BETA).softmax(0)


def distance(policy: torch.Tensor) -> float:
    return 0.5 * float((policy - BEST).abs().sum())


def test_dpos_minimiser_is_the_best_policy():
    dpo = lambda *logps: prefer.dpo_loss(*logps, BETA)  # noqa: E731
    assert distance(minimiser(dpo, 0.0)) < 1e-6
    assert distance(minimiser(dpo, FLIPPED)) > 0.05


def test_with_flipped_labels_only_robust_dpo_is():
    cdpo = lambda *logps: prefer.dpo_loss(*logps, BETA, label_smoothing=FLIPPED)  # noqa: E731
    robust = lambda *logps: prefer.robust_dpo_loss(*logps, BETA, FLIPPED)  # noqa: E731
    assert distance(minimiser(robust, FLIPPED)) < 1e-6
    assert distance(minimiser(cdpo, FLIPPED)) > 0.05
    ipo = lambda *logps: prefer.ipo_loss(*logps, BETA)  # noqa: E731
    assert distance(minimiser(ipo, 0.0)) > 0.05


def test_the_reward_models_minimiser_is_the_reward():
    """Up to a constant, which the loss cannot see."""
    scores = torch.zeros(32, dtype=F64, requires_grad=True)
    a, b = (~torch.eye(32, dtype=bool)).nonzero().T
    clean = (REWARDS[a] - REWARDS[b]).sigmoid()
    optimizer = torch.optim.LBFGS(
        [scores], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure():
        optimizer.zero_grad()
        losses = torch.vmap(rm.reward_model_loss)(scores[a], scores[b])
        loss = (clean * losses).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    gap = scores.detach() - REWARDS
    assert float(gap.max() - gap.min()) < 1e-5
