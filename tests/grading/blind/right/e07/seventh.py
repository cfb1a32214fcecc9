# a reader's own answers, from the notebook alone
from collections import OrderedDict

import torch


def normal_levels(bits: int) -> torch.Tensor:
    """2**bits levels, float32, ascending from -1 to 1, one of them exactly 0."""
    total, half = 2**bits, 2 ** (bits - 1)
    p_out = 1 - 0.5 * (1 / (2 * total) + 1 / (2 * (total - 1)))
    # the last of each linspace is 1/2, the zero: it is put in once, by hand
    above = torch.linspace(p_out, 0.5, half + 1, dtype=torch.float64)[:-1]
    below = torch.linspace(p_out, 0.5, half, dtype=torch.float64)[:-1]
    upper, lower = torch.special.ndtri(above), -torch.special.ndtri(below)
    zero = torch.zeros(1, dtype=torch.float64)
    levels = torch.cat([lower, zero, upper]).sort().values
    return (levels / levels.max()).float()


def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A code for each number, a scale for each block of the flattened x."""
    flat = x.detach().flatten().float()
    n = flat.numel()
    tiles = torch.nn.functional.pad(flat, (0, -n % size)).view(-(-n // size), size)
    scales = tiles.abs().amax(dim=1)
    safe = scales.clamp(min=torch.finfo(torch.float32).tiny)
    fractions = tiles / safe[:, None]
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(fractions, borders)
    return codes.flatten()[:n].to(torch.uint8), scales


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the first in the high half."""
    even = torch.nn.functional.pad(codes, (0, len(codes) % 2))
    first, second = even[0::2], even[1::2]
    return (first << 4) | second


def compress(scales: torch.Tensor, levels, size: int) -> dict[str, torch.Tensor]:
    """Scales in 8 bits, around their mean."""
    mean = scales.mean()
    codes, outer = quantize_blocks(scales - mean, levels, size)
    return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}


class DequantizedMatmul(torch.autograd.Function):
    """x Ŵᵀ; Ŵ is made in forward, and again in backward."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        weight = layer.weight.dequantize().to(x.dtype)
        return x @ weight.T

    @staticmethod
    def backward(ctx, dy):
        weight = ctx.layer.weight.dequantize().to(dy.dtype)
        return dy @ weight, None


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
            begin = sum(len(pages) for pages in self.ranges.values())
            count = -(-nbytes // self.page_bytes)
            self.ranges[key] = range(begin, begin + count)
        for page in self.ranges[key]:
            if page not in self.resident and not new:
                self.faults += 1
                self.bytes_in += self.page_bytes
            dirty = self.resident.pop(page, False) or write
            self.evict_to(self.frames - 1)
            self.resident[page] = dirty

    def evict_to(self, count: int) -> None:
        while len(self.resident) > max(count, 0):
            _, dirty = self.resident.popitem(last=False)
            if dirty:
                self.bytes_out += self.page_bytes
