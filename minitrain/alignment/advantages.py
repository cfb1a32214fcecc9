"""Advantages: how much better an answer did than expected, the factor of its gradient.

    GAE     delta_t = r_t + gamma V_{t+1} - V_t;   A_t = delta_t + gamma lambda A_{t+1}
    group   the expectation is the mean of G answers to the same prompt: no value model

lambda = 1 is return minus value (no bias, high variance), lambda = 0 the one-step TD error. A
token that does not count (padding, a tool's output) passes A and V of the next one through,
undecayed. Cost: O(B T); a value model doubles weights and optimizer state, a group costs G answers.
Papers: GAE, arXiv 1506.02438 (eq. 16); GRPO, 2402.03300 (section 4.1); Dr. GRPO, 2503.20783;
RLOO, 2402.14740. Lab: e13_alignment. Shapes: B answers  G of them to one prompt  T tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import rearrange, repeat
from torch import Tensor

from minitrain.errors import InputError, divide

SMALL = 1e-4  # added to a group's standard deviation


def gae_naive(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """One answer after another, backwards over the tokens that count."""
    advantages = torch.zeros_like(values)
    for row, own in enumerate(mask.bool()):
        advantage = next_value = 0.0
        for t in reversed(own.nonzero()[:, 0].tolist()):
            delta = rewards[row, t] + gamma * next_value - values[row, t]
            advantage = delta + gamma * lam * advantage
            next_value = values[row, t]
            advantages[row, t] = advantage
    return advantages, (advantages + values) * mask


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """rewards, values, mask (B, T) -> advantages and returns (B, T), 0 where mask is 0.

    The value after the last token that counts is 0: an answer that has ended earns nothing more.
    """
    _check_same(rewards=rewards, values=values, mask=mask)
    counts = mask.to(values.dtype)
    advantage = next_value = values.new_zeros(len(values))  # (B,)
    columns = []
    for r, v, m in zip(*(reversed(x.unbind(dim=1)) for x in (rewards, values, counts))):
        delta = r + gamma * next_value - v
        advantage = m * (delta + gamma * lam * advantage) + (1 - m) * advantage
        next_value = m * v + (1 - m) * next_value
        columns.append(advantage * m)
    advantages = torch.stack(columns[::-1], dim=1)  # (B, T)
    return advantages, (advantages + values) * counts


def whiten(
    x: Tensor,
    mask: Tensor,
    shift_mean: bool = True,
    all_reduce: Callable[[Tensor], object] = lambda tensor: tensor,
) -> Tensor:
    """x, mask (B, T) -> x with variance 1, and mean 0 unless `shift_mean` is False (for rewards,
    whose sign means something). Over all tokens that count, on all ranks: `all_reduce` sums in
    place. The variance is unbiased, as in torch; 0 where mask is 0."""
    _check_same(x=x, mask=mask)
    counts = mask.to(x.dtype)
    sums = torch.stack([counts.sum(), (x * counts).sum()])
    all_reduce(sums)
    number, mean = sums[0], sums[1] / sums[0]
    if number < 2:
        raise InputError(f"{int(number)} tokens count, and a variance needs 2 or more")
    squares = ((x - mean).square() * counts).sum()
    all_reduce(squares)
    white = (x - mean) * torch.rsqrt(squares / (number - 1) + 1e-8)
    return (white if shift_mean else white + mean) * counts


def grpo_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """rewards (B,), the G answers of a prompt adjacent -> (r - mean) / (std + 1e-4), (B,).

    Where all answers of a group earn the same, exactly 0: such a prompt teaches nothing.
    """
    groups = grouped(rewards, group_size)
    spread = groups.std(dim=1, keepdim=True)  # Bessel's correction
    return ((groups - groups.mean(dim=1, keepdim=True)) / (spread + SMALL)).flatten()


def dr_grpo_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """r - mean: without the division, which weights a prompt more the closer its pass rate is to 0
    or 1. The answer itself is in the mean, so the gradient is (G - 1)/G of the true one."""
    groups = grouped(rewards, group_size)
    return (groups - groups.mean(dim=1, keepdim=True)).flatten()


def rloo_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """r - the mean of the *other* G - 1 answers: unbiased, and G/(G - 1) times Dr. GRPO's."""
    groups = grouped(rewards, group_size)
    others = (groups.sum(dim=1, keepdim=True) - groups) / (group_size - 1)
    return (groups - others).flatten()


def reinforce_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """r - the mean of the whole batch: one baseline for easy and hard prompts alike."""
    return rewards - rewards.mean()


def grouped(rewards: Tensor, group_size: int) -> Tensor:
    """(B,) -> (B/G, G). Answers to a prompt are adjacent: 0 0 0 1 1 1, as `repeat_prompts` and the
    engine's `n` give them. With prompts interleaved, 0 1 0 1, groups would mix them."""
    if group_size < 2:
        raise InputError(f"a group of {group_size} has no other answer to compare with: use 2 up")
    if rewards.ndim != 1:
        raise InputError(f"rewards are {tuple(rewards.shape)}: give one for each answer, (B,)")
    divide("rewards", len(rewards), group_size, "answers a group")
    whole = rewards if rewards.is_floating_point() else rewards.float()
    return rearrange(whole, "(p g) -> p g", g=group_size)


def spread_over_tokens(advantages: Tensor, mask: Tensor) -> Tensor:
    """(B,) -> (B, T): every token of an answer has the answer's advantage, others 0."""
    return repeat(advantages, "b -> b t", t=mask.shape[1]) * mask


def _check_same(**tensors: Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 2 for shape in shapes.values()):
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"{told}: give tensors (B, T) of one shape")
