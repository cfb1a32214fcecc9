"""A layer that mixes tokens, in place of a block's attention, and carries a state of bounded size.

    out = mixer(x, around)                        a whole sequence: training
    out, state = mixer.read(x, around, state)     its next T tokens: decoding, or a long segment

Both compute the same: a sequence read in any segments gives the outputs of the whole one. Token t
of a document starts from an empty state where its position is 0, so packed rows do not leak.
Shapes: B batch  T tokens  D width  H heads  C channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

State = Any  # tensors, nested in tuples; None before the first token


class Around(NamedTuple):
    """What all layers know of their tokens: positions (T,) or (B, T), each in its own document, and
    the documents (B, T) that are packed into a row, if any."""

    positions: Tensor
    documents: Tensor | None = None


class Mixer(nn.Module, ABC):
    @abstractmethod
    def read(self, x: Tensor, around: Around, state: State = None) -> tuple[Tensor, State]:
        """x (B, T, D), the tokens after those in the state -> (B, T, D), and the new state."""

    def forward(self, x: Tensor, around: Around, mask: None = None) -> Tensor:
        """x (B, T, D) -> (B, T, D). `mask` is there for the block's signature, and unused."""
        return self.read(x, around)[0]

    def reset_parameters(self) -> None:
        """Gives those parameters their start that are no plain matrices."""


class ShortConvolution(nn.Module):
    """Each channel is a weighted sum of its last four values: y_t = sum over k of w_k x_(t-k).

    It lets a layer compare a token with those just before it; the state is the last three inputs.
    """

    def __init__(self, channels: int, width: int = 4):
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(channels, width))  # the last: the token itself
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As large for the tokens before as for the token itself: a layer that begins without them
        is slow to find them."""
        bound = self.width**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def read(self, x: Tensor, around: Around, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """x (B, T, C), state (B, 3, C) -> (B, T, C), and the new state."""
        before = self.width - 1
        if state is None:
            state = x.new_zeros(x.shape[0], before, x.shape[2])
        longer, length = torch.cat((state, x), dim=1), x.shape[1]  # (B, 3 + T, C)
        out = torch.zeros_like(x)
        for back in range(self.width):
            own = rearrange(around.positions >= back, "... t -> ... t 1")  # of the same document
            shifted = longer[:, before - back : before - back + length]  # (B, T, C)
            out = out + shifted * own * self.weight[:, -1 - back]
        return out, longer[:, length:]


def restarts(decay: Tensor, around: Around) -> Tensor:
    """Log decays (B, H, T), -inf where a document begins: the state before it is forgotten."""
    first = around.positions == 0  # (T,) or (B, T)
    return decay.masked_fill(rearrange(first, "... t -> ... 1 t"), -torch.inf)


def no_state(k: Tensor, v: Tensor) -> Tensor:
    """k (B, H or 1, T, C), v (B, H, T, P) -> (B, H, C, P) zeros."""
    return v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])


def split_chunks(x: Tensor, size: int) -> Tensor:
    """x (B, H, T, ...) -> (B, H, T / size, size, ...), the last chunk filled with zeros."""
    missing = -x.shape[2] % size
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, missing))
    return x.unflatten(2, (-1, size))


def heads_first(x: Tensor, heads: int) -> Tensor:
    """x (B, T, H·C) -> (B, H, T, C)."""
    return rearrange(x, "b t (h c) -> b h t c", h=heads)


def heads_last(x: Tensor) -> Tensor:
    """x (B, H, T, C) -> (B, T, H·C)."""
    return rearrange(x, "b h t c -> b t (h c)")
