"""Rotary position embedding: queries and keys are rotated by their token's position.

The C numbers of a head are read as C/2 points in the plane, and point i of the token at position p
is rotated by the angle p·theta^(-2i/C). The product of a query and a key then depends only on the
distance between the two tokens. The pairing of the numbers is a convention:

    half-split    i and i + C/2     Hugging Face, and this course
    interleaved   2i and 2i + 1     the paper, Meta's own files, llama2.c

Weights of one convention in code of the other raise no error, but the model outputs nonsense;
reordering the rows of the q and k matrices (`interleaved_to_half_split`) converts between them.
Cost: 3·B·T·(H+K)·C FLOPs a layer, no parameters. Paper: Su et al., arXiv 2104.09864. Lab: e01.
Shapes: B batch  T tokens  H heads  C head size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.model.config import ModelConfig, RopeScaling


class Rotation(NamedTuple):
    """cos and sin of every angle, to broadcast over heads: (T, 1, C) or (B, T, 1, C).

    The two halves of C hold the same C/2 angles; in the first, sin is negated.
    """

    cos: Tensor
    sin: Tensor


def rotation(config: ModelConfig, positions: Tensor, dtype: torch.dtype) -> Rotation:
    """positions (T,) or (B, T) -> their rotation, in `dtype`.

    Angles are float32 in every model: in bfloat16, positions 4001 and 4002 are equal.
    """
    positions = rearrange(positions, "... t -> ... t 1 1").float()
    angles = positions * frequencies(config, positions.device)  # (..., T, 1, C/2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def frequencies(config: ModelConfig, device: torch.device | str = "cpu") -> Tensor:
    """-> (C/2,) float32: radians a token, from 1 down to nearly 1 / theta."""
    pairs = torch.arange(0, config.head_size, 2, dtype=torch.float32, device=device)
    radians = 1.0 / config.rope_theta ** (pairs / config.head_size)
    return radians if config.rope_scaling is None else _slowed(radians, config.rope_scaling)


def _slowed(radians: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: high frequencies, which separate neighbours, stay; waves longer than the original
    length are slowed by `factor`, and so reach no new angle; those between are interpolated."""
    wavelength = 2 * math.pi / radians  # tokens a turn
    turns = scaling.original_length / wavelength
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * radians / scaling.factor + kept * radians


def rotate(x: Tensor, turns: Rotation) -> Tensor:
    """x (B, T, H, C) -> (B, T, H, C), each half-split pair (a, b) rotated by its angle:
    (a·cos - b·sin, b·cos + a·sin). Rolling by C/2 swaps a and b."""
    return x * turns.cos + x.roll(x.shape[-1] // 2, dims=-1) * turns.sin


def rotate_interleaved(x: Tensor, turns: Rotation) -> Tensor:
    """The other convention, for comparison: 2i and 2i + 1 are a pair."""
    cos, sin = (z.chunk(2, dim=-1)[1] for z in turns)  # (..., T, 1, C/2) each
    a, b = rearrange(x, "b t h (c pair) -> pair b t h c", pair=2)  # (B, T, H, C/2) each
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin))  # (2, B, T, H, C/2)
    return rearrange(turned, "pair b t h c -> b t h (c pair)")


def interleaved_to_half_split(weight: Tensor, heads: int) -> Tensor:
    """A q or k matrix (H·C, D) for `rotate_interleaved` -> the same layer's matrix for `rotate`."""
    return rearrange(weight, "(h c pair) d -> (h pair c) d", h=heads, pair=2)


def document_positions(documents: Tensor) -> Tensor:
    """documents (B, T), equal numbers within a document -> positions (B, T), from 0 in each
    document."""
    place = torch.arange(documents.shape[1], device=documents.device)  # (T,)
    first = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))  # (B, T): a document begins here
    return place - (place * first).cummax(dim=1).values
