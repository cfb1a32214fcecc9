"""Numbers of 8 bits and fewer: what a cast keeps, bit for bit, on any device.

A float of e exponent and m mantissa bits has 2^m steps between one power of two and the next, so
the rounding error is at most 2^-(m+1) of the value; below the smallest normal number the steps stay
equal (subnormals), and below half a step everything rounds to 0.

    E4M3   1 . 4 . 3   largest 448     error 6%     2^-9  .. 448     forward: activations, weights
    E5M2   1 . 5 . 2   largest 57344   error 12%    2^-16 .. 57344   backward: gradients
    E2M1   1 . 2 . 1   largest 6       error 25%    0.5   .. 6       in blocks (blocks.py)

Larger values are always clamped here to the largest number, since the result of a bare cast (inf,
NaN or the largest) differs between formats, devices and versions. NaN stays NaN.
Cost: 1 byte a number, float32 4. Paper: Micikevicius et al. 2022 (arXiv:2209.05433). Lab: e04.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

EXPONENT = 0x7F800000  # the exponent's bits of a float32
FLOAT32_EXPONENT, FLOAT32_MANTISSA = -126, 23  # smallest normal exponent, and mantissa bits


@dataclass(frozen=True)
class FloatFormat:
    """1 sign, `exponent_bits`, `mantissa_bits`; `largest` is the largest finite number."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: float
    dtype: torch.dtype | None = None  # the torch dtype, if there is one

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def smallest_exponent(self) -> int:
        """The smallest exponent of normal numbers; subnormal ones share it."""
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def largest_exponent(self) -> int:
        """E such that 2^E <= largest < 2^(E+1)."""
        return int(self.largest).bit_length() - 1

    @property
    def smallest(self) -> float:
        """The smallest positive number: one step of the subnormal ones."""
        return 2.0 ** (self.smallest_exponent - self.mantissa_bits)


E4M3 = FloatFormat("E4M3", 4, 3, 448.0, torch.float8_e4m3fn)
E5M2 = FloatFormat("E5M2", 5, 2, 57344.0, torch.float8_e5m2)
E2M1 = FloatFormat("E2M1", 2, 1, 6.0)


def round_to(x: Tensor, form: FloatFormat) -> Tensor:
    """The nearest number of `form` for each of x, ties to even, clamped; float32 -> float32.

    x = q · step, where the step belongs to x's power of two: both divisions are by a power of two,
    so only `round` rounds.
    """
    x = x.float().clamp(-form.largest, form.largest)
    power = (x.view(torch.int32) & EXPONENT).view(torch.float32)  # 2^floor(log2 |x|)
    step = power.clamp_(min=2.0**form.smallest_exponent).mul_(2.0**-form.mantissa_bits)
    return (x / step).round_().mul_(step)


def cast(x: Tensor, form: FloatFormat) -> Tensor:
    """The same numbers in 8 bits, by torch's own cast: x -> a tensor of `form.dtype`."""
    return x.float().clamp(-form.largest, form.largest).to(form.dtype)


def to_codes(x: Tensor, form: FloatFormat) -> Tensor:
    """Numbers representable in `form` -> their bits, as uint8.

    After scaling by a power of two that maps `form`'s subnormals to float32's, the first bits of
    the float32 are the code: both formats are ordered alike.
    """
    x = x.float()
    moved = x.abs() * 2.0 ** (FLOAT32_EXPONENT - form.smallest_exponent)
    code = moved.view(torch.int32) >> (FLOAT32_MANTISSA - form.mantissa_bits)
    sign = (x.view(torch.int32) >> (32 - form.bits)) & (1 << (form.bits - 1))
    return (code | sign).to(torch.uint8)


def from_codes(codes: Tensor, form: FloatFormat) -> Tensor:
    """The numbers, in float32, of bits that encode a finite one."""
    sign_bit = 2 ** (form.bits - 1)
    bits = (codes & (sign_bit - 1)).int() << (FLOAT32_MANTISSA - form.mantissa_bits)
    value = bits.view(torch.float32) * 2.0 ** (form.smallest_exponent - FLOAT32_EXPONENT)
    return torch.where(codes >= sign_bit, -value, value)


# ---- storage: a byte is one number of 8 bits, or two of 4, the first in its low half ----


def pack(x: Tensor, form: FloatFormat) -> Tensor:
    """x (..., K), rounded to `form` -> bytes (..., K) or (..., K/2), which needs an even K."""
    if form.dtype is not None:
        return cast(x, form)
    pairs = to_codes(round_to(x, form), form).view(torch.int16)  # high byte: the second code
    return (pairs | (pairs >> 4)).to(torch.uint8)


def unpack(held: Tensor, form: FloatFormat) -> Tensor:
    """Bytes -> float32 (..., K), by lookup: on a CPU three times as fast as torch's conversion."""
    numbers = byte_table(form).to(held.device)
    index = held.contiguous().view(torch.uint8).flatten().int()
    return numbers.index_select(0, index).view(*held.shape, numbers.shape[1]).flatten(-2)


@lru_cache
def byte_table(form: FloatFormat) -> Tensor:
    """The value of each of the 256 bytes: (256, 1) or (256, 2)."""
    codes = torch.arange(256, dtype=torch.uint8)
    if form.dtype is not None:
        return codes.view(form.dtype).float().unsqueeze(1)
    return from_codes(torch.stack([codes & 15, codes >> 4], dim=1), form)
