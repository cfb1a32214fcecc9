"""All rules, and pairs of equal weights that get equal gradients."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.adamw import AdamW, NaiveAdamW
from minitrain.optimizers.lion import Lion
from minitrain.optimizers.sgd import SGD

KINDS = [NaiveAdamW, AdamW, SGD, Lion, Adafactor, Adam8bit]


def twins(dtype=torch.float64, shapes=((6, 5), (4,), (2, 3, 7))) -> tuple[list, list]:
    generator = torch.Generator().manual_seed(0)
    ours = [nn.Parameter(torch.randn(s, dtype=dtype, generator=generator)) for s in shapes]
    return ours, copies(ours)


def copies(weights) -> list[nn.Parameter]:
    return [nn.Parameter(w.detach().clone()) for w in weights]


def give_gradients(ours, theirs, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for a, b in zip(ours, theirs):
        a.grad = torch.randn(a.shape, dtype=a.dtype, generator=generator) + a.detach()
        b.grad = a.grad.clone()


def follow(ours, theirs, first, second, steps=range(12), tolerance: float = 1e-12) -> bool:
    """True if two optimizers go the same way, every step of it."""
    same = True
    for seed in steps:
        give_gradients(ours, theirs, seed)
        first.step()
        second.step()
        pairs = zip(ours, theirs)
        same &= all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)
    return same
