"""A step of our optimizers against torch's and bitsandbytes', over a model's parameters.

Same gradients, same learning rates, copies of the same weights. Before timing, both must update the
weights equally.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, TORCH, Case
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.adamw import AdamW

PRESETS = ("10M",)
OPTIONS = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
FUSED_REASON = (
    "torch's fused kernel reads and writes each number once and does a dozen operations on it "
    "between; ours are seven operations over pieces that stay in cache, each called from Python"
)
FOREACH_REASON = (
    "both make the same passes; on a GPU there is no cache to stay in, and ours starts the kernels "
    "from Python as torch's does"
)
BYTES_REASON = (
    "bitsandbytes decodes, moves and encodes in one kernel, and ours looks each number up among "
    "256 levels by bisection, in passes of their own"
)
Make = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def cases(
    repeats: int = 15, presets: Sequence[str] = PRESETS, device: str | None = None
) -> list[Case]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torchs = f"AdamW of {TORCH}"
    ours, lean = partial(AdamW, **OPTIONS), partial(Adam8bit, **OPTIONS)
    fused = partial(torch.optim.AdamW, **OPTIONS, fused=True)
    foreach = partial(torch.optim.AdamW, **OPTIONS, foreach=True)
    contenders = [
        ("AdamW", f"foreach {torchs}", ours, foreach, 1e-5, FOREACH_REASON),
        ("AdamW", f"fused {torchs}", ours, fused, 1e-5, FUSED_REASON),
    ]
    if find_spec("bitsandbytes"):
        import bitsandbytes

        peer = partial(bitsandbytes.optim.AdamW8bit, **OPTIONS)
        title = f"AdamW8bit of bitsandbytes {bitsandbytes.__version__}"
        contenders.append(("8-bit AdamW", title, lean, peer, 5e-2, BYTES_REASON))
    return [
        Case(f"{title} {name}", peer_name, partial(measured, name, repeats, device, *pair), reason)
        for name in presets
        for title, peer_name, *pair, reason in contenders
    ]


def measured(
    name: str, repeats: int, device: str, ours: Make, peer: Make, tolerance: float
) -> Comparison:
    """`tolerance`: the allowed difference of two updates, relative to the update."""
    model = build(preset(name), device=device)
    start = [p.detach().clone() for p in model.parameters()]
    weights = {who: [nn.Parameter(w.clone()) for w in start] for who in (OURS, PEER)}
    for a, b in zip(weights[OURS], weights[PEER]):
        a.grad = b.grad = torch.randn_like(a)
    steps = {OURS: ours(weights[OURS]).step, PEER: peer(weights[PEER]).step}
    for step in (*steps.values(), *steps.values()):
        step()
    _check_agreement(weights, start, tolerance)
    return compare(steps, repeats, warmup=3)


def _check_agreement(
    weights: dict[str, list[nn.Parameter]], start: list[Tensor], tolerance: float
) -> None:
    flat = {who: torch.cat([w.detach().flatten() for w in ws]) for who, ws in weights.items()}
    way = (flat[PEER] - torch.cat([w.flatten() for w in start])).norm()
    apart = (flat[OURS] - flat[PEER]).norm() / way
    assert apart < tolerance, f"the two optimizers part by {apart:.1e} of their way"
