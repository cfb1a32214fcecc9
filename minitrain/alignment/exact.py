"""Exact yardsticks: the best policy under a KL penalty, without training anything.

    maximise E r - beta KL(pi || ref):   pi*(y) = ref(y) e^{r(y)/beta} / Z,   J* = beta log Z

On a chain of words, with a reward for each word, Z is a recursion backwards over the T steps:
Z_t(w) = sum_w' p(w'|w) e^{f(w')/beta} Z_{t+1}(w'), T V^2 operations; reward and KL of *any* policy
are one forwards. For a reward of 0 or 1 with pass rate q under the reference, a policy with pass
rate r has KL >= r log(r/q) + (1 - r) log((1 - r)/(1 - q)): the frontier, on which pi* and best-of-n
lie. Papers: best-of-n's KL, arXiv 2401.01879; control as inference, 1805.00909.
Lab: e13_alignment. Shapes: V words  T steps  B sequences.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrain.data.stories.chain import ODDS, make_chain
from minitrain.errors import InputError


@dataclass(frozen=True)
class Optimum:
    """J = reward - beta·KL; `policy` (T, V, V) is the best one, policy[t, w] after word w."""

    J: float
    reward: float
    kl: float
    policy: Tensor


@dataclass(frozen=True)
class WordChain:
    """T words, each drawn after the one before it from `reference` (V, V), the first after word
    `start`; each word w earns `rewards[w]`. All in float64."""

    reference: Tensor
    rewards: Tensor
    length: int = 16
    start: int = 0

    def optimum(self, beta: float) -> Optimum:
        if not beta > 0:
            raise InputError(f"beta is {beta}: give a number above 0, such as 1")
        log_z = torch.zeros_like(self.rewards)  # (V,), after the last step
        steps = []
        for _ in range(self.length):
            logits = self.reference.log() + self.rewards / beta + log_z  # (V, V)
            log_z = logits.logsumexp(dim=1)
            steps.append((logits - log_z[:, None]).exp())
        policy = torch.stack(steps[::-1])
        reward, kl = (float(x) for x in self.evaluate(policy))
        return Optimum(beta * float(log_z[self.start]), reward, kl, policy)

    def evaluate(self, policy: Tensor) -> tuple[Tensor, Tensor]:
        """(T, V, V) -> expected reward and KL of whole sequences, exact, with gradients."""
        at = torch.zeros_like(self.rewards)  # probability of being at each word
        at[self.start] = 1.0
        reward = kl = torch.zeros((), dtype=policy.dtype)
        for step in policy:
            pairs = at[:, None] * step  # (V, V)
            reward = reward + (pairs @ self.rewards).sum()
            kl = kl + (pairs * (_log(step) - _log(self.reference))).sum()
            at = pairs.sum(dim=0)
        return reward, kl


def course_chain(initials: str = "bdg", length: int = 16) -> WordChain:
    """The corpus's own chain of 100 words with 32 followers each; a word with one of these initials
    earns 1."""
    chain = make_chain("chain")
    size = len(chain.words)
    reference = torch.zeros(size, size, dtype=torch.float64)
    odds = torch.tensor(ODDS.weights, dtype=torch.float64)
    for word, followers in enumerate(chain.followers):
        reference[word, list(followers)] = odds / odds.sum()
    earns = torch.tensor([float(word[0] in initials) for word in chain.words], dtype=torch.float64)
    return WordChain(reference, earns, length)


def _log(p: Tensor) -> Tensor:
    """log p, finite at 0, where its factor is 0 too."""
    return p.clamp(min=1e-300).log()


class TablePolicy(nn.Module):
    """A policy for a `WordChain` with one number for each pair of words, evaluated exactly.

    It begins as the reference. The same table at every step comes within 0.006 of the course
    chain's J* at beta 1, whose best policy depends on the step a little.
    """

    def __init__(self, chain: WordChain) -> None:
        super().__init__()
        self.chain = chain
        logits = chain.reference.log().float()  # -inf where nothing follows
        self.register_buffer("possible", logits > -math.inf)
        self.logits = nn.Parameter(logits.clamp(min=-40))

    def log_policy(self) -> Tensor:
        """(V, V)"""
        return self.logits.masked_fill(~self.possible, -math.inf).log_softmax(dim=-1)

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(B, T + 1) words, the start among them; by the inverse of the cumulative distribution,
        which is sixteen times as fast here as torch.multinomial."""
        below = self.log_policy().exp().cumsum(dim=-1)  # (V, V)
        below = below / below[:, -1:]  # exactly 1 from the last possible word on
        words = [torch.full((count,), self.chain.start)]
        for uniforms in torch.rand(self.chain.length, count, 1, generator=generator):
            words.append(torch.searchsorted(below[words[-1]], uniforms, right=True)[:, 0])
        return torch.stack(words, dim=1)

    def log_probabilities(self, words: Tensor) -> Tensor:
        """(B, T + 1) -> (B, T)."""
        return self.log_policy()[words[:, :-1], words[:, 1:]]

    def reference_log_probabilities(self, words: Tensor) -> Tensor:
        return self.chain.reference[words[:, :-1], words[:, 1:]].log().float()

    @torch.no_grad()
    def evaluate(self, beta: float) -> Optimum:
        """The exact J, reward and KL of this policy."""
        policy = self.log_policy().double().exp().expand(self.chain.length, -1, -1)
        reward, kl = (float(x) for x in self.chain.evaluate(policy))
        return Optimum(reward - beta * kl, reward, kl, policy)


TableLoss = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def tilting_loss(
    words: Tensor, scores: Tensor, logp: Tensor, ref_logp: Tensor, beta: float
) -> Tensor:
    """words (B, T + 1), scores (B,), logp and ref_logp (B, T) -> a scalar to descend.

    REINFORCE, with k1 in the reward and the batch's mean as baseline. At the optimum score -
    beta·log(pi/ref) is the same for every sequence, so the gradient's noise vanishes there; a
    penalty that counts only the KL from a token on would keep it.
    """
    judged = scores - beta * (logp.detach() - ref_logp).sum(dim=1)
    return -((judged - judged.mean()) * logp.sum(dim=1)).mean()


def train_table(
    chain: WordChain,
    loss: TableLoss = tilting_loss,
    beta: float = 1.0,
    steps: int = 100,
    batch: int = 512,
    lr: float = 0.05,
    lag: int = 0,
    seed: int = 0,
) -> TablePolicy:
    """Samples `batch` sequences a step, and follows the loss by Adam. The loss knows scores alone,
    no rewards of single words. `lag`: the sequences are from the policy of so many steps ago, whose
    log-probabilities then follow as a sixth argument."""
    policy, dice = TablePolicy(chain), torch.Generator().manual_seed(seed)
    optimizer, waiting = torch.optim.Adam(policy.parameters(), lr=lr), deque()
    for _ in range(steps + lag):
        words = policy.sample(batch, dice)
        waiting.append((words, policy.log_probabilities(words).detach()))
        if len(waiting) <= lag:
            continue
        words, old = waiting.popleft()
        scores = chain.rewards.float()[words[:, 1:]].sum(dim=1)
        logp, ref = policy.log_probabilities(words), policy.reference_log_probabilities(words)
        optimizer.zero_grad()
        loss(words, scores, logp, ref, beta, *([old] if lag else [])).backward()
        optimizer.step()
    return policy


# ---- rewards of 0 or 1 ----


def frontier(pass_rate: float, reference_rate: float) -> float:
    """The least KL of any policy with this pass rate, in nats."""
    r, q = pass_rate, reference_rate
    if not (0 <= r <= 1 and 0 < q < 1):
        raise InputError(f"pass rates are {r} and {q}: give 0 to 1, and above 0 and below 1")
    parts = ((r, q), (1 - r, 1 - q))
    return max(0.0, sum(new * math.log(new / old) for new, old in parts if new > 0))


def kl_efficiency(pass_rate: float, reference_rate: float, kl: float) -> float:
    """The frontier's KL over the KL that was spent, from 0 to 1: how much of the way from the
    reference went into the reward. 1 at a policy that only reweights by reward."""
    least = frontier(pass_rate, reference_rate)
    return 1.0 if kl <= 0 and least == 0 else least / kl if kl > 0 else math.inf


def tilted(reference_rate: float, beta: float) -> tuple[float, float]:
    """Of the best policy for a reward of 0 or 1: its pass rate, and J*."""
    q = reference_rate
    normaliser = 1 - q + q * math.exp(1 / beta)
    return q * math.exp(1 / beta) / normaliser, beta * math.log(normaliser)


def best_of_n(reference: Tensor, rewards: Tensor, n: int) -> Tensor:
    """reference and rewards (V,) of V outcomes -> the distribution (V,) of the best of n samples.

    Outcomes of equal reward keep their ratios. Its KL is at most log n - (n - 1)/n.
    """
    levels, level = rewards.unique(return_inverse=True)  # sorted
    mass = torch.zeros_like(reference, dtype=torch.float64)[: len(levels)]
    mass.index_add_(0, level, reference.double())
    below = mass.cumsum(0)
    best = below**n - (below - mass).clamp(min=0) ** n
    return best[level] * reference.double() / mass[level]


def folklore_kl(n: int) -> float:
    """log n - (n - 1)/n, often given for best-of-n's KL: only an upper bound."""
    return math.log(n) - (n - 1) / n
