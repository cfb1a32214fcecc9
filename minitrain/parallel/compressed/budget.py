"""A gradient under a budget of bytes: bits go where they remove the most error.

Blocks of a gradient differ by orders of magnitude: rows of unseen tokens are 0, biases are large.
With b bits a number, a block of normal numbers of variance s² keeps an error of s² · D(b):

    b      0      1      2      4          levels: Max's for the normal distribution
    D(b)   1   .363   .118   .0095

so the next bit of each block has a known gain for its bytes, and the best ones are taken until the
budget is spent: the reverse water-filling of rate-distortion theory, in greedy form.
Cost: `budget` bytes a vector at most, 4 + blocks/4 of them for the plan, 1 a block for its scale.
Papers: Max 1960 (table I); Cover & Thomas, Elements of Information Theory, 10.3. Lab:
e02g_slow_networks. P numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.parallel.compressed.bits import packed, unpacked

BLOCK = 64
WIDTHS = (0, 1, 2, 4)  # bits of a number
DISTORTION = torch.tensor([1.0, 0.3634, 0.1175, 0.009497])
OCTAVE = 8  # steps of a scale's byte to a factor of 2
POSITIVE = {  # each level has its negative
    1: (0.7980,),
    2: (0.4528, 1.510),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733),
}


def levels(bits: int) -> Tensor:
    """The 2^bits levels of the least mean squared error for a standard normal number."""
    above = torch.tensor(POSITIVE[bits])
    return torch.cat([-above.flip(0), above])


class LargestOnly:
    """Naive: the largest numbers in float32 with their places, 8 bytes each, and no others."""

    def encode(self, vector: Tensor, budget: int) -> Tensor:
        """(P,) -> (budget or fewer,) uint8"""
        places = vector.abs().topk(min(budget // 8, vector.numel())).indices.int()
        values = vector.float()[places.long()]
        return torch.cat([values.view(torch.uint8), places.view(torch.uint8)])

    def decode(self, message: Tensor, length: int) -> Tensor:
        """(bytes,) -> (length,) float32"""
        values, places = (part.clone() for part in message.chunk(2))
        vector = torch.zeros(length)
        vector[places.view(torch.int32).long()] = values.view(torch.float32)
        return vector


class WaterFilling:
    """A message: the largest scale, a plan of 2 bits a block, then scales and codes by width."""

    def encode(self, vector: Tensor, budget: int) -> Tensor:
        """(P,) -> (budget or fewer,) uint8"""
        blocks = F.pad(vector.float(), (0, -vector.numel() % BLOCK)).view(-1, BLOCK)
        sizes = blocks.square().mean(dim=1).sqrt()  # (blocks,)
        top = sizes.max().clamp(min=torch.finfo(torch.float32).tiny)
        logs = (OCTAVE * torch.log2(top / sizes)).round().clamp(max=255)  # a block of 0: inf
        plan = allot(sizes.square(), budget - plan_bytes(len(sizes)))
        parts = [top.view(1).view(torch.uint8), pack_row(plan, bits=2)]
        for step, bits in enumerate(WIDTHS[1:], 1):
            own = logs[plan == step]
            scaled = blocks[plan == step] / (top * 2 ** (-own / OCTAVE))[:, None]
            middles = (levels(bits)[1:] + levels(bits)[:-1]) / 2
            codes = torch.bucketize(scaled, middles)
            parts += [own.to(torch.uint8), pack_row(codes.flatten(), bits)]
        return torch.cat(parts)

    def decode(self, message: Tensor, length: int) -> Tensor:
        """(bytes,) -> (length,) float32"""
        count = -(-length // BLOCK)
        top = message[:4].clone().view(torch.float32)
        plan = unpacked(message[None, 4 : plan_bytes(count)], bits=2)[0, :count]
        blocks, at = torch.zeros(count, BLOCK), plan_bytes(count)
        for step, bits in enumerate(WIDTHS[1:], 1):
            number = int((plan == step).sum())
            sizes = [number, number * BLOCK * bits // 8]
            own, codes = message[at : at + sum(sizes)].split(sizes)
            at += sum(sizes)
            values = levels(bits)[unpacked(codes[None], bits)[0].long()].view(-1, BLOCK)
            blocks[plan == step] = values * (top * 2 ** (-own.float() / OCTAVE))[:, None]
        return blocks.flatten()[:length]


def allot(variances: Tensor, room: int) -> Tensor:
    """Each block's place in WIDTHS: upgrades in order of the error that a byte removes.

    Within a block each upgrade removes less a byte than the one before, so the order is its own.
    """
    if room < 0:
        need = plan_bytes(len(variances))
        raise InputError(f"a budget of {need + room} bytes: the plan alone takes {need}")
    costs = torch.tensor(WIDTHS).diff() * BLOCK // 8 + torch.tensor([1, 0, 0])  # its scale, once
    gains = (variances[:, None] * -DISTORTION.diff()).flatten()  # (blocks · upgrades,)
    order = (gains / costs.repeat(len(variances))).argsort(descending=True, stable=True)
    spent = costs.repeat(len(variances))[order].cumsum(0)
    taken = order[(spent <= room) & (gains[order] > 0)]
    return (taken // len(costs)).bincount(minlength=len(variances))


def plan_bytes(blocks: int) -> int:
    return 4 + -(-blocks // 4)


def pack_row(codes: Tensor, bits: int) -> Tensor:
    """(n,) -> (⌈n · bits / 8⌉,) uint8"""
    return packed(F.pad(codes, (0, -len(codes) % (8 // bits)))[None], bits)[0]
