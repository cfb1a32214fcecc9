"""Cross-entropy of a batch processed in parts: the mean over the tokens of all parts.

Microbatches and ranks have unequal numbers of targets, so a mean of means differs from the mean:
each part is divided by the tokens of all. Cost: 4 V bytes a token, its log-probabilities in
float32, which backward needs. Lab: e01. Shapes: B batch  T tokens  V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

IGNORED = -100  # the target of a position that does not count: padding


def token_weighted_loss(logits: Tensor, targets: Tensor, total_tokens: Tensor | int) -> Tensor:
    """This microbatch's share of the step's loss: its summed cross-entropy over *all* its tokens.

    logits (B, T, V), targets (B, T) with -100 where not counted; `total_tokens` counts the targets
    of every microbatch on every rank, so that the shares add up to the mean over all tokens.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # at least
    logits = rearrange(logits, "b t v -> (b t) v")
    targets = rearrange(targets, "b t -> (b t)")
    summed = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return summed / total_tokens


def mean_of_means_loss(logits: Tensor, targets: Tensor, microbatches: int) -> Tensor:
    """The naive share: each microbatch's own mean, divided by the number of microbatches.

    Wrong if they have unequal numbers of targets: a token of a half-empty microbatch then counts
    twice as much as one of a full microbatch, and the result depends on how the batch is cut.
    """
    return token_weighted_loss(logits, targets, (targets != IGNORED).sum()) / microbatches
