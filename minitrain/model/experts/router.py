"""The router: the K of E experts for each token, their weights, and the losses on imbalance.

    p = softmax(x Wᵀ)  in float32         experts = the K largest of p + bias
    weights = their p, over their sum     for K = 1, p itself: p / p would have no gradient

Without balancing it sends ever more tokens to the experts that already happen to be good. Three
losses and a bias counteract that. With f_i the share of the choices that expert i got, times E:

    balance     mean over tokens of Σ f_i·p_i: 1 if even, E/K at worst; only p has a gradient
      sequence  f counted over a token's sequence, so that the loss is a mean over sequences,
                independent of the split into microbatches and ranks        (DeepSeek-V3)
      batch     f counted over the microbatch: depends on the split         (Switch)
    z           mean over tokens of logsumexp(logits)², keeps logits small  (ST-MoE)
    bias        up by `bias_rate` if an expert got less than the mean in a step, down if more; it
                affects the choice, not the weights, so it adds no gradient       (Wang et al.)

Cost: 2·D·E FLOPs a token. Papers: Switch, arXiv 2101.03961; ST-MoE, 2202.08906; Wang et al.,
2408.15664; DeepSeek-V3, 2412.19437. Lab: e02d_expert_parallel.
Shapes: B batch  T tokens  D width  E experts  K experts a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from minitrain.model.config import ModelConfig

Sum = Callable[[Tensor], Tensor]  # sums a tensor over some ranks


def alone(counts: Tensor) -> Tensor:
    """The sum over ranks if there is only one."""
    return counts


@dataclass(frozen=True)
class Routing:
    """`losses`: sequence balance, batch balance, z; each summed over tokens, to be divided by all
    the step's tokens."""

    experts: Tensor  # (B, T, K) int64
    probabilities: Tensor  # (B, T, K), of those experts
    weights: Tensor  # (B, T, K), of the expert outputs in the sum
    load: Tensor  # (E,) int64: choices per expert on this rank
    losses: Tensor  # (3,)


class Router(nn.Module):
    """`sum_sequence` sums counts over the ranks that share a sequence, `sum_batch` over those
    that share a microbatch, for example `lambda counts: group.all_reduce(counts)`.

    The bias is `bias_rate` times an integer: it stays exact in a model of any dtype.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.per_token = config.experts_per_token
        self.bias_rate = config.bias_rate
        self.charges = any((config.sequence_balance, config.batch_balance, config.z_loss))
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden_size))  # (E, D)
        nn.init.normal_(self.weight, std=config.hidden_size**-0.5)
        self.register_buffer("bias_steps", torch.zeros(config.experts, dtype=torch.int64))  # (E,)
        self.sum_sequence: Sum = alone
        self.sum_batch: Sum = alone

    def forward(self, x: Tensor) -> Routing:
        """x (B, T, D)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(wide), self.weight.to(wide))  # (B, T, E)
        p = logits.softmax(dim=-1)  # (B, T, E)
        experts = (p.detach() + self.bias).topk(self.per_token).indices  # (B, T, K)
        chosen = p.gather(-1, experts)  # (B, T, K): gradients flow to p through it
        weights = chosen / chosen.sum(-1, keepdim=True) if self.per_token > 1 else chosen
        counts = choices(experts, p.shape[-1])  # (B, E)
        if not self.charges:  # the losses are only reported, and keep nothing for backward
            logits, p = logits.detach(), p.detach()
        losses = self.losses(logits, p, counts)
        return Routing(experts, chosen.detach(), weights, counts.sum(0), losses)

    @property
    def bias(self) -> Tensor:
        return self.bias_rate * self.bias_steps  # (E,)

    def losses(self, logits: Tensor, p: Tensor, counts: Tensor) -> Tensor:
        """logits and p (B, T, E), counts (B, E) -> (3,)."""
        sequence = self.sum_sequence(counts.clone())  # (B, E)
        batch = self.sum_batch(counts.sum(0, keepdim=True))  # (1, E)
        return torch.stack(
            [balance_loss(p, sequence), balance_loss(p, batch), z_loss(logits)]
        )  # (3,)

    @torch.no_grad()
    def update_bias(self, load: Tensor) -> None:
        """load (E,): choices per expert in the step, summed over *all* ranks."""
        wide = load.double()
        self.bias_steps += torch.sign(wide.mean() - wide).to(self.bias_steps.dtype)


def choices(experts: Tensor, count: int) -> Tensor:
    """experts (B, T, K) -> (B, E): how often each was chosen in each sequence."""
    flat = rearrange(experts, "b t k -> b (t k)")
    zeros = torch.zeros(len(flat), count, dtype=torch.int64, device=experts.device)
    return zeros.scatter_add(1, flat, torch.ones_like(flat))


def balance_loss(p: Tensor, counts: Tensor) -> Tensor:
    """p (B, T, E), counts (B, E) or (1, E) -> the sum over tokens of Σ f_i·p_i.

    Linear in p: if several ranks share the counts of f, each sums over its own tokens, and the
    partial losses add up.
    """
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1)  # (B, E)
    f = counts.shape[-1] * share.to(p.dtype)
    return (f * p.sum(dim=1)).sum()


def z_loss(logits: Tensor) -> Tensor:
    """logits (B, T, E) -> the sum over tokens of logsumexp²."""
    return logits.logsumexp(dim=-1).square().sum()
