"""Delayed scaling: a tensor's FP8 scale comes from its largest magnitudes in past steps.

The largest magnitude of *this* tensor is known only once all of it is computed, so current scaling
reads it twice. Magnitudes change slowly: the largest of the last steps serves as well, and the cast
can be fused into the operation that makes the tensor. Values that have grown since are clamped.

    microbatches  m0 m1 m2 | step: max over microbatches, max over ranks, into the history | m0 …

The history takes the maximum, not the last microbatch's; over all ranks, or each would cast the
same weight differently; only for layers that ran; and it belongs to the state of the model.
Cost: 3 floats per layer and step of history; one all-reduce of 3 floats per layer and step.
Paper: Micikevicius et al. 2022 (arXiv:2209.05433); NVIDIA's Transformer Engine. Lab: e04.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

ACTIVATION, WEIGHT, GRADIENT = 0, 1, 2  # the columns of a history
NOT_SEEN = -1.0


class AmaxHistory(nn.Module):
    """The largest magnitudes of a layer's activation, weight and gradient in the last H steps."""

    def __init__(self, length: int, device: torch.device):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))  # (H, 3), newest first
        self.seen: dict[int, Tensor] = {}  # since the last step; not a buffer: ranks differ in it

    @torch.no_grad()
    def amax(self, role: int, now: Tensor, record: bool = True) -> Tensor:
        """Records the current magnitude, and returns the one to scale by: the past's, if any."""
        if record:
            self.seen[role] = torch.maximum(self.seen.get(role, now), now)
        past = self.past[:, role].amax()
        return torch.where(past > 0, past, now)

    def take_seen(self) -> Tensor:
        """(3,): the maxima of all microbatches since the last call, -1 if a role did not run."""
        unseen = self.past.new_full((), NOT_SEEN)
        seen = torch.stack([self.seen.get(role, unseen) for role in range(3)])
        self.seen.clear()
        return seen

    def roll(self, seen: Tensor) -> None:
        """seen (3,) becomes the newest entry of each column that ran."""
        rolled = torch.cat([seen.unsqueeze(0), self.past[:-1]])  # (H, 3)
        self.past.copy_(torch.where(seen >= 0, rolled, self.past))


@torch.no_grad()
def roll_histories(
    model: nn.Module, all_reduce_max: Callable[[Tensor], object] = lambda tensor: tensor
) -> None:
    """After a step: puts all layers' maxima over all ranks into their histories, in one message.

    `all_reduce_max` takes the maximum over ranks, in place. A layer that ran on any rank is updated
    on all of them.
    """
    histories = [module for module in model.modules() if isinstance(module, AmaxHistory)]
    if histories:
        seen = torch.stack([history.take_seen() for history in histories])  # (layers, 3)
        all_reduce_max(seen)
        for history, row in zip(histories, seen):
            history.roll(row)
