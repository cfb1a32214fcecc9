# a reader's own answers, from the notebook alone
from collections import OrderedDict

import torch
import torch.nn.functional as F


def normal_levels(bits: int) -> torch.Tensor:
    """2**bits levels, float32, from -1 to 1, one of them 0."""
    above, below = 2 ** (bits - 1), 2 ** (bits - 1) - 1
    outer = 1 - (1 / (2 * 2**bits) + 1 / (2 * (2**bits - 1))) / 2

    def side(steps):
        shares = torch.linspace(outer, 0.5, steps + 1, dtype=torch.float64)
        return torch.special.ndtri(shares[:-1])

    zero = torch.zeros(1, dtype=torch.float64)
    levels = torch.cat([-side(below), zero, side(above)]).sort().values
    return (levels / levels.max()).float()


def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """codes (n,) uint8 and scales (number of blocks,) float32."""
    flat = x.detach().flatten().float()
    count = flat.numel()
    tiles = F.pad(flat, (0, -count % size)).view(-1, size)
    scales = tiles.abs().amax(dim=1)
    divisors = scales.masked_fill(scales == 0, 1)
    fractions = (tiles / divisors[:, None]).flatten()[:count]
    levels = levels.float()
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(fractions, borders)
    return codes.to(torch.uint8), scales


def pack(codes: torch.Tensor) -> torch.Tensor:
    """bytes ((n + 1) // 2,) uint8, the first of two codes in the high half."""
    padded = F.pad(codes, (0, len(codes) % 2))
    first, second = padded[0::2], padded[1::2]
    return (first << 4) | second


def compress(scales: torch.Tensor, levels, size: int) -> dict[str, torch.Tensor]:
    """One mean for all, and what is left in 8 bits."""
    scales = scales.detach()
    mean = scales.mean()
    codes, outer = quantize_blocks(scales - mean, levels, size)
    return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}


class DequantizedMatmul(torch.autograd.Function):
    """`DequantizedMatmul.apply(x, layer)`: x (..., D) -> x Ŵᵀ (..., F), in x's dtype."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        weight = layer.weight.dequantize()
        return x @ weight.to(x.dtype).t()

    @staticmethod
    def backward(ctx, dy):
        again = ctx.layer.weight.dequantize()
        return dy @ again.to(dy.dtype), None


class PageTable:
    """Which pages are in memory, of which `capacity_bytes` are theirs."""

    def __init__(self, capacity_bytes: int, page_bytes: int = 2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()  # page -> is it dirty? The oldest touch first
        self.ranges = {}  # key -> its own page numbers, in order
        self.faults = self.bytes_in = self.bytes_out = 0

    def touch(self, key, nbytes: int, write: bool = True) -> None:
        new = key not in self.ranges
        if new:
            start = sum(len(pages) for pages in self.ranges.values())
            count = -(-nbytes // self.page_bytes)
            self.ranges[key] = range(start, start + count)
        for page in self.ranges[key]:
            if not new and page not in self.resident:
                self.faults += 1
                self.bytes_in += self.page_bytes
            dirty = self.resident.pop(page, False) or write
            self.evict_to(self.frames - 1)
            self.resident[page] = dirty
        self.evict_to(self.frames)  # where there is not even one frame

    def evict_to(self, count: int) -> None:
        while len(self.resident) > max(count, 0):
            _, dirty = self.resident.popitem(last=False)
            if dirty:
                self.bytes_out += self.page_bytes
