"""A gradient under a budget of bytes: bits go where they remove the most error.

Blocks of a gradient differ by orders of magnitude: rows of unseen tokens are 0, biases are large.
With b bits a block of standard deviation s keeps an error of s² · D(b), if its numbers are normal:

    b      0      1      2      4          levels: Lloyd and Max's for the normal distribution
    D(b)   1   .363   .118   .0095

so the next bit of each block has a known gain for its bytes, and the best ones are taken until the
budget is spent: the reverse water-filling of rate-distortion theory, in greedy form.
Cost: `budget` bytes a vector at most, 4 + blocks/4 of them for the plan, 1 a block for its scale.
Papers: Lloyd 1982; Cover & Thomas, Elements of Information Theory, 10.3. Lab: e02g_slow_networks.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.parallel.compressed.quantized import packed, unpacked

BLOCK = 64
WIDTHS = (0, 1, 2, 4)  # bits of a number
OCTAVE = 8  # steps of a scale's byte to a factor of 2


@cache
def normal_levels(bits: int) -> Tensor:
    """The 2^bits levels of the least mean squared error for a standard normal number."""
    draws = torch.special.ndtri((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096)
    levels = torch.special.ndtri((torch.arange(2**bits, dtype=torch.float64) + 0.5) / 2**bits)
    for _ in range(400):  # Lloyd: each level moves to the mean of the numbers nearest to it
        nearest = nearest_level(draws, levels)
        totals = torch.zeros_like(levels).index_add_(0, nearest, draws)
        levels = totals / nearest.bincount(minlength=len(levels))
    return levels.float()


def nearest_level(numbers: Tensor, levels: Tensor) -> Tensor:
    return torch.bucketize(numbers, (levels[1:] + levels[:-1]) / 2)


def encode_naive(vector: Tensor, budget: int) -> Tensor:
    """The largest numbers in float32, with their places: 8 bytes each, whatever the rest is."""
    places = vector.abs().topk(min(budget // 8, vector.numel())).indices.int()
    values = vector.float()[places.long()]
    return torch.cat([values.view(torch.uint8), places.view(torch.uint8)])


def decode_naive(message: Tensor, length: int) -> Tensor:
    values, places = message.clone().chunk(2)
    vector = torch.zeros(length)
    vector[places.clone().view(torch.int32).long()] = values.clone().view(torch.float32)
    return vector


def encode(vector: Tensor, budget: int) -> Tensor:
    """(P,) -> (budget or fewer,) uint8: the largest scale, a plan, scales and codes of blocks."""
    blocks = F.pad(vector.float(), (0, -vector.numel() % BLOCK)).view(-1, BLOCK)
    sizes = blocks.square().mean(dim=1).sqrt()  # (blocks,)
    top = sizes.max().clamp(min=torch.finfo(torch.float32).tiny)
    logs = (OCTAVE * torch.log2(top / sizes)).round().clamp(max=255)  # inf for a block of zeros
    plan = allot(sizes.square(), budget - plan_bytes(len(sizes)))
    parts = [top.view(1).view(torch.uint8), pack_row(plan, bits=2)]
    for step, bits in enumerate(WIDTHS[1:], 1):
        chosen = plan == step
        scaled = blocks[chosen] / (top * 2 ** (-logs[chosen] / OCTAVE))[:, None]
        codes = nearest_level(scaled, normal_levels(bits))
        parts += [logs[chosen].to(torch.uint8), pack_row(codes.flatten(), bits)]
    return torch.cat(parts)


def decode(message: Tensor, length: int) -> Tensor:
    """(bytes,) -> (length,) float32"""
    count = -(-length // BLOCK)
    top = message[:4].clone().view(torch.float32)
    plan = unpacked(message[None, 4 : plan_bytes(count)], bits=2)[0, :count]
    blocks, at = torch.zeros(count, BLOCK), plan_bytes(count)
    for step, bits in enumerate(WIDTHS[1:], 1):
        chosen = plan == step
        number = int(chosen.sum())
        sizes = [number, number * BLOCK * bits // 8]
        logs, codes = message[at : at + sum(sizes)].split(sizes)
        at += sum(sizes)
        scales = top * 2 ** (-logs.float() / OCTAVE)
        values = normal_levels(bits)[unpacked(codes[None], bits)[0].long()]
        blocks[chosen] = values.view(-1, BLOCK) * scales[:, None]
    return blocks.flatten()[:length]


def allot(variances: Tensor, room: int) -> Tensor:
    """Each block's place in WIDTHS: upgrades in order of the error that a byte removes.

    Within a block each upgrade removes less a byte than the one before, so the order is its own.
    """
    if room < 0:
        need = plan_bytes(len(variances))
        raise InputError(f"a budget of {need + room} bytes: the plan alone takes {need}")
    distortion = torch.tensor([1.0, *(normal_error(bits) for bits in WIDTHS[1:])])
    costs = torch.tensor(WIDTHS).diff() * BLOCK // 8 + torch.tensor([1, 0, 0])  # its scale, once
    gains = variances[:, None] * -distortion.diff()  # (blocks, upgrades)
    order = (gains / costs).flatten().argsort(descending=True, stable=True)
    spent = costs.repeat(len(variances))[order].cumsum(0)
    taken = order[(spent <= room) & (gains.flatten()[order] > 0)]
    return (taken // len(costs)).bincount(minlength=len(variances))


@cache
def normal_error(bits: int) -> float:
    """D(b): the share of a normal number's variance that its levels leave."""
    draws = torch.special.ndtri((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096)
    levels = normal_levels(bits).double()
    return float((draws - levels[nearest_level(draws, levels)]).square().mean())


def plan_bytes(blocks: int) -> int:
    return 4 + -(-blocks // 4)


def pack_row(codes: Tensor, bits: int) -> Tensor:
    """(n,) -> (⌈n · bits / 8⌉,) uint8"""
    return packed(F.pad(codes, (0, -len(codes) % (8 // bits)))[None], bits)[0]
