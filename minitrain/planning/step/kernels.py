"""Seconds of one kernel on one chip: a roofline, with what a kernel costs beside its work.

    matmul        max(2 m n k / (matmul · peak), bytes / (memory · bandwidth)) + kernel
    attention     FLOPs in full / (attention · peak) + kernel            fused: no scores in memory
    element-wise  bytes / (memory · bandwidth) + kernel

`matmul`, `attention`, `memory`, `kernel` are the chip's four constants (`hardware.py`). Efficiency
so depends on the shape: sizes are padded to tiles of 64, a small matmul pays the same ramp as a
large one, and one with a short side is bound by memory, as attention's are without fusion.
"""

from __future__ import annotations

from minitrain.planning.hardware import Chip

TILE = 64  # the granularity of a thread block's tile


def padded(size: int | float) -> float:
    """Up to whole tiles."""
    return max(1, -(-size // TILE)) * TILE


def matmul(chip: Chip, precision: str, m: float, n: float, k: float, count: int = 1) -> float:
    """(m, k) x (k, n) with 16-bit operands and result, `count` of them in one kernel.

    In FP8 the activations are cast first: read in 16 bits, written in 8, twice (one transposed).
    """
    rate = chip.constants.matmul * chip.peak(precision)
    cast = 0.0
    if precision == "fp8":
        rate *= chip.fp8_share
        cast = traffic(chip, 4 * m * k * count)
    work = 2 * padded(m) * padded(n) * k * count / rate
    bytes_moved = 2 * (m * k + k * n + m * n) * count
    return max(work, traffic(chip, bytes_moved)) + cast + chip.constants.kernel


def fused_attention(chip: Chip, precision: str, flops: float) -> float:
    """FlashAttention and its like (Dao et al. 2022): in 16 bits, whatever the matmuls have."""
    sixteen = "bf16" if precision == "fp8" else precision
    return flops / (chip.constants.attention * chip.peak(sixteen)) + chip.constants.kernel


def elementwise(chip: Chip, nbytes: float, kernels: int = 1) -> float:
    """Kernels that read and write `nbytes` in all."""
    return traffic(chip, nbytes) + kernels * chip.constants.kernel


def traffic(chip: Chip, nbytes: float) -> float:
    assert chip.bandwidth, f"{chip.name} has no memory bandwidth in data/hardware.csv"
    return nbytes / (chip.constants.memory * chip.bandwidth)
