"""One loop for REINFORCE, RLOO, GRPO, Dr. GRPO and PPO: sample, score, weigh, step.

    prompts -> answers -> rewards - beta·log(pi/ref) -> advantages -> clipped loss -> step
               engine     verifier  reward-side KL      group or GAE   1 to few passes

PPO adds a value model and GAE; the others differ in the advantage alone. With `lag` 1 the answers
of the next step are drawn before this step's update, so that sampling and training could run side
by side, at the price of a ratio that is no longer 1.
Cost a step: B answers sampled, forward passes by policy and reference, and 3 passes of training for
each of `passes`; a value model doubles the last. Papers: REINFORCE, Williams 1992; PPO, arXiv
1707.06347; GRPO, 2402.03300; asynchronous RLHF, 2410.18252. Lab: e13_alignment.
Shapes: B answers  G of them to one prompt  T tokens.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor, nn

from minitrain.alignment import advantages as by
from minitrain.alignment.kl import k1, k3, per_token_rewards
from minitrain.alignment.policy_loss import AGGREGATIONS, Totals, clipped, policy_loss, value_loss
from minitrain.alignment.reward_model import with_scalar_head
from minitrain.alignment.rollouts import (
    Rollouts,
    Sampler,
    answer_log_probabilities,
    as_rows,
    engine_sampler,
    repeat_prompts,
)
from minitrain.alignment.verifiable import Task
from minitrain.errors import InputError, check_whole, unknown_name
from minitrain.inference.parameters import SamplingParameters
from minitrain.model.transformer import Transformer
from minitrain.training.loop import ALONE, Peers

METHODS: dict[str, Callable[[Tensor, int], Tensor] | None] = {
    "reinforce": by.reinforce_advantages,
    "rloo": by.rloo_advantages,
    "grpo": by.grpo_advantages,
    "dr_grpo": by.dr_grpo_advantages,
    "ppo": None,  # GAE, from a value model
}


@dataclass(frozen=True)
class AlignConfig:
    """`beta` weighs k1 in the reward, `loss_beta` k3 in the loss (GRPO as published)."""

    method: str = "grpo"
    prompts: int = 8  # a step
    group_size: int = 8  # answers to each
    lr: float = 3e-4
    beta: float = 0.0
    loss_beta: float = 0.0
    clip: float = 0.2
    clip_high: float | None = None
    passes: int = 1  # over each step's answers
    microbatches: int = 1  # optimizer steps a pass
    aggregation: str = "dapo"
    temperature: float = 1.0
    lag: int = 0  # steps between drawing answers and learning from them
    gamma: float = 1.0
    lam: float = 0.95
    grad_clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown_name("method of alignment", self.method, METHODS)
        if self.aggregation not in AGGREGATIONS:
            raise unknown_name("aggregation", self.aggregation, AGGREGATIONS)
        for name in ("prompts", "group_size", "passes", "microbatches"):
            check_whole(name, getattr(self, name))
        if self.lag < 0 or not self.temperature > 0 or self.beta < 0 or self.loss_beta < 0:
            raise InputError(
                f"lag {self.lag}, temperature {self.temperature}, beta {self.beta}, loss_beta "
                f"{self.loss_beta}: give a temperature above 0, and the others 0 or more"
            )


@dataclass(frozen=True)
class Experience:
    """Answers, and all that was known when they were drawn. (B, T) each, B rows."""

    rollouts: Rollouts
    old_logp: Tensor
    ref_logp: Tensor
    advantages: Tensor
    old_values: Tensor | None = None
    returns: Tensor | None = None

    def rows(self, start: int, stop: int) -> Experience:
        tensors = (self.old_logp, self.ref_logp, self.advantages, self.old_values, self.returns)
        parts = (None if x is None else x[start:stop] for x in tensors)
        return Experience(self.rollouts.rows(start, stop), *parts)


@dataclass(frozen=True)
class AlignRecord:
    step: int
    reward: float  # mean over the step's answers
    kl: float  # nats an answer, mean of k1: of the policy that drew the answers
    clipped: float  # share of tokens
    length: float  # tokens an answer
    rollout_seconds: float
    train_seconds: float


def align(
    model: Transformer,
    task: Task,
    config: AlignConfig,
    steps: int,
    end_token: int,
    reference: nn.Module | None = None,
    sample: Sampler | None = None,
    peers: Peers = ALONE,
    callback: Callable[[AlignRecord], object] = lambda record: None,
) -> list[AlignRecord]:
    """Trains `model` in place. `reference` defaults to a copy of it; `sample` to the engine."""
    reference = copy.deepcopy(model) if reference is None else reference
    critic = with_scalar_head(model, std=0.0) if config.method == "ppo" else None
    trained = [p for m in (model, critic) if m for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.lr, weight_decay=0.0, betas=(0.9, 0.95))
    sample = sample or engine_sampler(model, end_token)
    dice, waiting, records = Random(config.seed), deque(), []
    for drawn in range(steps + config.lag):
        began = time.perf_counter()
        if drawn < steps:
            waiting.append(collect(model, reference, critic, task, config, end_token, sample, dice))
        between = time.perf_counter()
        if drawn < config.lag:
            continue
        experience, reward = waiting.popleft()
        share = learn(model, critic, optimizer, experience, config, peers)
        mask = experience.rollouts.mask
        kl = (k1(experience.old_logp, experience.ref_logp) * mask).sum(1).mean().item()
        record = AlignRecord(
            drawn - config.lag + 1,
            reward,
            kl,
            share,
            mask.sum(1).mean().item(),
            between - began,
            time.perf_counter() - between,
        )
        records.append(record)
        callback(record)
    return records


@torch.no_grad()
def collect(
    model: Transformer,
    reference: nn.Module,
    critic: nn.Module | None,
    task: Task,
    config: AlignConfig,
    end_token: int,
    sample: Sampler,
    dice: Random,
) -> tuple[Experience, float]:
    """One step's answers, judged; and their mean reward."""
    numbers = task.sample(config.prompts, dice)
    prompts, n = [task.prompts[number] for number in numbers], config.group_size
    settings = SamplingParameters(
        task.max_new_tokens, config.temperature, seed=dice.randrange(2**31)
    )
    answers = sample(prompts, settings, n)
    device = next(model.parameters()).device
    rollouts = as_rows(repeat_prompts(prompts, n), answers, end_token, device)
    owners = repeat_prompts(numbers, n)
    rewards = [task.reward(i, a.tokens) * a.ended for i, a in zip(owners, answers)]
    scores, mask = torch.tensor(rewards, device=device), rollouts.mask
    old, ref = (
        answer_log_probabilities(m, rollouts, config.temperature) for m in (model, reference)
    )
    if critic is None:
        judged = scores - config.beta * (k1(old, ref) * mask).sum(1)
        spread = by.spread_over_tokens(METHODS[config.method](judged, n), mask)
        return Experience(rollouts, old, ref, spread), scores.mean().item()
    values = critic(rollouts.tokens)[:, :-1, 0] * mask
    rewards = per_token_rewards(scores, old, ref, mask, config.beta)
    advantages, returns = by.gae(rewards, values, mask, config.gamma, config.lam)
    return Experience(rollouts, old, ref, advantages, values, returns), scores.mean().item()


def learn(
    model: nn.Module,
    critic: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    experience: Experience,
    config: AlignConfig,
    peers: Peers = ALONE,
) -> float:
    """`passes` times `microbatches` steps of the optimizer; -> the share of clipped tokens."""
    rows = len(experience.rollouts)
    size, removed, counted = -(-rows // config.microbatches), 0.0, 0.0
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for _ in range(config.passes):
        for start in range(0, rows, size):
            part = experience.rows(start, min(start + size, rows))
            loss, share = losses(model, critic, part, config, peers)
            (loss * peers.size).backward()
            peers.synchronize()
            peers.clip(parameters, config.grad_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tokens = float(part.rollouts.mask.sum())
            removed, counted = removed + share * tokens, counted + tokens
    return removed / counted


def losses(
    model: nn.Module,
    critic: nn.Module | None,
    part: Experience,
    config: AlignConfig,
    peers: Peers = ALONE,
) -> tuple[Tensor, float]:
    """This rank's share of the loss, and of its tokens those that the clip has stopped. The shares
    of all ranks add up to the loss of one process with all answers."""
    mask, advantages = part.rollouts.mask, part.advantages
    counts = torch.tensor([float(len(mask)), float(mask.sum())], dtype=torch.float64)
    peers.all_reduce(counts)
    totals = Totals(int(counts[0]), int(counts[1]), mask.shape[1])
    aggregate = AGGREGATIONS[config.aggregation]
    if critic is not None:
        advantages = by.whiten(advantages, mask, all_reduce=peers.all_reduce)
    logp = answer_log_probabilities(model, part.rollouts, config.temperature)
    each = policy_loss(logp, part.old_logp, advantages, config.clip, config.clip_high)
    if config.loss_beta:
        each = each + config.loss_beta * k3(logp, part.ref_logp)
    loss = aggregate(each, mask, totals)
    if critic is not None:
        values = critic(part.rollouts.tokens)[:, :-1, 0] * mask
        loss = loss + aggregate(value_loss(values, part.old_values, part.returns), mask, totals)
    stopped = clipped(logp, part.old_logp, advantages, config.clip, config.clip_high)
    return loss, float((stopped * mask).sum() / mask.sum().clamp(min=1))
