"""Tiled attention on a GPU: one Triton program per tile.

On a CPU a tile stays in the cache while PyTorch's operations pass over it one by one. On a GPU each
operation would write it to memory and read it back; a single kernel keeps it in registers
from the scores to their product with the values. Two kernels compute the gradients, so that each
sum is owned by one program, without atomics: one per tile of queries, one per tile of keys.

Cost: as tiled.py, and the scores are computed a third time. Paper: Dao, arXiv 2307.08691. Lab: e05.
Shapes: B batch  H query heads  K key/value heads  I, J queries and keys  C head size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import Tiled, check_heads

TILE = 64  # queries and keys
FAR = 2**30  # a window that masks nothing


def triton_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None) -> Tensor:
    """As `tiled_attention`, for float32, bfloat16 and float16: q (B, H, I, C) -> (B, H, I, C)."""
    check_heads(q, k, v)
    if q.dtype == torch.float64:
        raise InputError("the Triton kernel sums in float32: give float64 to tiled_attention")
    mask = (mask or Mask()).between(q.shape[2], k.shape[2])
    return Tiled.apply(q, k, v, mask, triton_forward, triton_backward)


def triton_forward(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """-> out (B, H, I, C) and log-sum-exp (B, H, I), both float32."""
    q, k, v = (z.contiguous() for z in (q, k, v))
    out = torch.empty_like(q, dtype=torch.float32)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    programs = -(-q.shape[2] // TILE), q.shape[0] * q.shape[1]
    _run(_kernels().forward_kernel, programs, (q, k, v, out, lse), mask)
    return out, lse


def triton_backward(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, lse: Tensor, delta: Tensor, mask: Mask
) -> tuple[Tensor, Tensor, Tensor]:
    """-> dq, dk, dv, float32."""
    read = [z.contiguous() for z in (q, k, v, d_out, lse, delta)]
    dq, dk, dv = (torch.empty_like(z, dtype=torch.float32) for z in read[:3])
    programs = -(-q.shape[2] // TILE), q.shape[0] * q.shape[1]
    _run(_kernels().queries_gradient_kernel, programs, (*read, dq), mask)
    programs = -(-k.shape[2] // TILE), k.shape[0] * k.shape[1]
    _run(_kernels().keys_gradient_kernel, programs, (*read, dk, dv), mask)
    return dq, dk, dv


def _run(kernel: Callable, programs: tuple[int, int], tensors: tuple[Tensor, ...], mask: Mask):
    """Launches the kernel; `tensors` are contiguous and begin with q and k."""
    (_, heads, queries, size), (_, kv_heads, keys, _) = (z.shape for z in tensors[:2])
    packed = mask.q_documents is not None
    documents = (mask.q_documents, mask.k_documents) if packed else tensors[:2]  # else not read
    kernel[programs](
        *tensors,
        *(z.contiguous() for z in documents),
        heads,
        heads // kv_heads,
        queries,
        keys,
        size,
        mask.offset,
        FAR if mask.window is None else mask.window,
        size**-0.5,
        PACKED=packed,
        ROWS=TILE,
        COLUMNS=TILE,
        WIDTH=max(16, 1 << (size - 1).bit_length()),
    )


def _kernels():
    try:
        from minitrain.model.attention import triton_kernels
    except ImportError as error:
        raise InputError(
            "triton_attention needs triton, which comes with PyTorch for CUDA: install that, or "
            "use tiled_attention"
        ) from error
    return triton_kernels
