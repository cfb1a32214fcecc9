"""Tiled attention against naive attention and PyTorch's fused kernel: causal, forward and backward.

Seconds, and peak bytes in addition to q, k, v and the output's gradient, by the ledger (which sees
tensors, not a kernel's own workspace). On a GPU ours is the Triton kernel. Before timing, all must
agree in the output and every gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, TORCH, Case, once
from minitrain.measure.clock import Comparison, compare
from minitrain.measure.memory import MemoryLedger
from minitrain.model.attention.grouped_query import Kernel, attention, attention_naive
from minitrain.model.attention.tiled import tiled_attention
from minitrain.model.attention.triton import triton_attention

PEERS = {
    "naive": (attention_naive, "attention in full"),
    "fused": (attention, "F.scaled_dot_product_attention"),
}
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
HEADS, KV_HEADS, SIZE = 4, 2, 64
SLOWER = {
    "naive": "a text shorter than a tile or two has little to skip, and a tile costs ten calls",
    "fused": "the fused kernel is one C++ function for a tile, ours ten operations from Python",
}
LARGER = {
    "naive": "a tile's scores are as large as all the scores of a text no longer than the tile",
    "fused": "our tile is a tensor that the ledger sees, theirs a workspace of the kernel's",
}


def cases(
    repeats: int = 7, lengths: Sequence[int] = LENGTHS, device: str | None = None
) -> list[Case]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return [
        case
        for length in lengths
        for name in PEERS
        for case in _pair(name, length, repeats, device)
    ]


def _pair(name: str, length: int, repeats: int, device: str) -> list[Case]:
    """Seconds and bytes at one length, against one peer."""
    peer, called = PEERS[name]
    kernels = {OURS: triton_attention if device.startswith("cuda") else tiled_attention, PEER: peer}
    beside, peer_name = f"{length} tokens, beside the {name} one", f"{called}, {TORCH}"
    timed = partial(_timed, kernels, length, repeats, device)
    weighed = partial(_weighed, kernels, length, device)
    return [
        Case(f"attention, {beside}", peer_name, timed, SLOWER[name]),
        Case(f"attention, peak bytes, {beside}", peer_name, weighed, LARGER[name], unit="bytes"),
    ]


def _timed(kernels: dict[str, Kernel], length: int, repeats: int, device: str) -> Comparison:
    inputs = _inputs(length, device)
    steps = {who: partial(_run, kernel, *inputs) for who, kernel in kernels.items()}
    torch.testing.assert_close(steps[OURS](), steps[PEER](), rtol=1e-3, atol=1e-4)
    return compare(steps, repeats, warmup=1)


def _weighed(kernels: dict[str, Kernel], length: int, device: str) -> Comparison:
    return once({who: peak_bytes(k, *_inputs(length, device)) for who, k in kernels.items()})


def peak_bytes(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, d_out: Tensor) -> int:
    """Peak bytes of forward and backward, without the inputs'."""
    with MemoryLedger(nn.ParameterList((q, k, v))) as ledger:
        d_out.mul_(1)  # so that the ledger has seen it
        given = ledger.now_bytes
        ledger.reset_peak()
        _run(kernel, q, k, v, d_out)
    return ledger.peak_bytes - given


def _run(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, d_out: Tensor) -> list[Tensor]:
    """-> out, dq, dk, dv."""
    out = kernel(q, k, v, None)
    return [out, *torch.autograd.grad(out, (q, k, v), d_out)]


def _inputs(length: int, device: str) -> list[Tensor]:
    """q, k and v, and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, length, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    tensors = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    return [*(nn.Parameter(z) for z in tensors[:3]), tensors[3]]
