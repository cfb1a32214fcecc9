from __future__ import annotations

import torch

from minitrain.precision.accumulator import cut, short_matmul
from minitrain.precision.formats import E4M3, round_to


def test_cutting_keeps_so_many_bits_towards_zero():
    x = torch.tensor([1 + 2**-13, 1 + 2**-14, -(1 + 2**-14), 3.0, 0.0, 2**-30], dtype=torch.float64)
    assert cut(x, 14).tolist() == [1 + 2**-13, 1.0, -1.0, 3.0, 0.0, 2**-30]


def test_promotion_keeps_a_long_sum_right():
    """Positive products, K = 4096: what a 14-bit sum loses has one sign, and adds up."""
    torch.manual_seed(0)
    a, b = (round_to(torch.rand(16, 4096), E4M3) for _ in range(2))
    exact = a.double() @ b.double().t()
    short = (short_matmul(a, b) - exact) / exact
    promoted = (short_matmul(a, b, promote_every=128) - exact) / exact
    assert (short <= 0).all() and short.abs().mean() > 2e-3
    assert short.abs().mean() > 20 * promoted.abs().mean()


def test_a_wide_accumulator_needs_none():
    torch.manual_seed(0)
    a, b = (round_to(torch.randn(5, 300), E4M3) for _ in range(2))
    torch.testing.assert_close(short_matmul(a, b, bits=40), a @ b.t(), rtol=1e-5, atol=1e-4)
    parts = short_matmul(a, b, promote_every=128, bits=40)  # 300 is no multiple of 128
    torch.testing.assert_close(parts, a @ b.t(), rtol=1e-5, atol=1e-4)
