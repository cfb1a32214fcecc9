"""A reward model: a Transformer with one output, fitted to which of two answers people prefer.

    Bradley-Terry   p(chosen over rejected) = sigmoid(r_c - r_r)
    loss            -log sigmoid(r_c - r_r - margin) + centering·(r_c + r_r)^2

Only differences are learned: r + c fits as well, so the mean is free and is pulled to 0 by a
centring term, or set afterwards on the reference's own answers (`normalise`). The score is read at
the last real token, the first that has seen the whole answer; position -1 may be padding.
Cost: two passes a pair; the head has D numbers. Papers: Stiennon et al., arXiv 2009.01325 (section
3.4); centring: 2312.09244. Lab: e13_alignment. Shapes: B answers  T tokens  D width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.alignment.kl import last_token
from minitrain.errors import InputError
from minitrain.model.transformer import Transformer


def reward_model_loss(
    chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0, centering: float = 0.0
) -> Tensor:
    """Scores (B,) -> the mean loss. `margin`: how much better the chosen one has to be, where the
    label says so. `centering` weights the squared sum of a pair's scores."""
    if centering < 0:
        raise InputError(f"centering is {centering}: give 0 (off) or more, such as 0.01")
    loss = -F.logsigmoid(chosen - rejected - margin)
    return (loss + centering * (chosen + rejected).square()).mean()


def score_last(scores: Tensor, mask: Tensor) -> Tensor:
    """scores (B, T) of every position, mask (B, T) of real tokens -> (B,)."""
    return scores.gather(1, last_token(mask)[:, None])[:, 0]


def with_scalar_head(model: Transformer, std: float | None = None) -> Transformer:
    """A copy of the model whose head has one output: (B, T) -> (B, T, 1). `std` of its weights
    defaults to 1/sqrt(D + 1); 0 for a value model, which then begins by expecting nothing."""
    width = model.config.hidden_size
    std = (width + 1) ** -0.5 if std is None else std
    scorer, weight = copy.deepcopy(model), model.embed.weight
    scorer.head = nn.Linear(width, 1, bias=False, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        scorer.head.weight.normal_(0.0, std) if std else scorer.head.weight.zero_()
    return scorer.requires_grad_()


class RewardModel(nn.Module):
    """tokens and mask (B, T) -> scores (B,), normalised by `gain` and `bias`."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.scorer = with_scalar_head(model)
        self.register_buffer("gain", torch.ones(()))
        self.register_buffer("bias", torch.zeros(()))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.gain * score_last(self.scorer(tokens)[..., 0], mask) + self.bias

    @torch.no_grad()
    def normalise(self, tokens: Tensor, mask: Tensor) -> None:
        """Mean 0 and standard deviation 1 on these answers, which the reference gave."""
        self.gain.fill_(1.0)
        self.bias.zero_()
        scores = self(tokens, mask)
        sd = scores.std()
        if not sd > 0:
            raise InputError(f"{len(scores)} answers all score the same: give different ones")
        self.gain.copy_(1 / sd)
        self.bias.copy_(-scores.mean() / sd)


@dataclass(frozen=True)
class Pairs:
    """Chosen and rejected answers, tokens and masks (B, T), B pairs."""

    chosen: Tensor
    chosen_mask: Tensor
    rejected: Tensor
    rejected_mask: Tensor


def fit_reward_model(
    model: nn.Module, batches: Iterable[Pairs], lr: float = 1e-3, centering: float = 0.0
) -> list[float]:
    """One pass over the pairs, the rate falling to 0: a second one overfits. Returns the losses."""
    batches = list(batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    losses = []
    for number, pairs in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - number / len(batches))
        chosen = model(pairs.chosen, pairs.chosen_mask)
        loss = reward_model_loss(chosen, model(pairs.rejected, pairs.rejected_mask), 0.0, centering)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
