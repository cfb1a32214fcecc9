"""Costs of mixed precision: a BF16 step against FP32, loss scaling and FP8 casts against torch's.

A training step of one model under autocast and without it; the unscaling of its gradients by our
`LossScaler` and by torch's `GradScaler`; rounding to E4M3 by our arithmetic and by torch's cast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, TORCH, Case, Shapes
from minitrain.bench.steps import next_token_loss, random_text, training_step
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.optimizers.adamw import adamw
from minitrain.precision.formats import E4M3, round_to
from minitrain.precision.loss_scaling import LossScaler

SHAPES = (("10M", 8, 128),)
ROUNDED = 2**20  # numbers
STEP_REASON = (
    "only the matmuls are faster in BF16, if the processor has units for it; the casts to it and "
    "back are extra passes, and the norms, the softmax and AdamW stay in FP32"
)
SCALER_REASON = (
    "torch multiplies and looks for an inf in one kernel, ours in two passes over the gradients"
)
ROUND_REASON = (
    "ours is arithmetic that serves any format, in eight passes over memory; torch's is one pass "
    "there and one back, for one format"
)


def cases(repeats: int = 15, shapes: Shapes = SHAPES, device: str | None = None) -> list[Case]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for name, batch, length in shapes:
        model = partial(build, preset(name), device=device)
        text = partial(random_text, name, batch, length, device)
        steps = partial(training_steps, model, text, repeats)
        rows += [
            Case(f"BF16 step {name}, {batch} x {length}", f"FP32, {TORCH}", steps, STEP_REASON),
            Case(
                f"unscale gradients {name}",
                f"GradScaler of {TORCH}",
                partial(unscaling, model, repeats),
                SCALER_REASON,
            ),
        ]
    title = f"cast to float8_e4m3fn and back of {TORCH}"
    rounds = partial(rounding, repeats, device)
    return [*rows, Case(f"round {ROUNDED:,} to E4M3", title, rounds, ROUND_REASON)]


def training_steps(
    model: Callable[[], nn.Module], text: Callable[[], Tensor], repeats: int
) -> Comparison:
    tokens = text()
    steps = {OURS: _step(model(), tokens, torch.bfloat16), PEER: _step(model(), tokens, None)}
    torch.testing.assert_close(steps[OURS](), steps[PEER](), rtol=2e-2, atol=0)
    return compare(steps, repeats, warmup=3)


def _step(model: nn.Module, text: Tensor, autocast: torch.dtype | None) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        with torch.autocast(text.device.type, autocast, enabled=autocast is not None):
            return next_token_loss(model, text)

    return training_step(loss, adamw(model, lr=1e-4))


def unscaling(model: Callable[[], nn.Module], repeats: int) -> Comparison:
    """Both divide their own gradients by 1: the same work every time."""
    ours, theirs = model(), model()
    kind = ours.embed.weight.device.type
    scaler, torchs = LossScaler(scale=1.0), torch.amp.GradScaler(kind, init_scale=1.0)
    torchs.scale(torch.ones(1, device=kind))  # initializes its scale
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.0)
    for a, b in zip(ours.parameters(), theirs.parameters()):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()

    def peer() -> None:
        torchs.unscale_(optimizer)
        torchs.update(1.0)  # it allows one unscale per update

    steps = {OURS: lambda: scaler.unscale(ours.parameters()), PEER: peer}
    return compare(steps, repeats, warmup=3)


def rounding(repeats: int, device: str) -> Comparison:
    x = 100 * torch.randn(ROUNDED, device=device)
    steps = {
        OURS: lambda: round_to(x, E4M3),
        PEER: lambda: x.clamp(-448, 448).to(torch.float8_e4m3fn).float(),
    }
    assert torch.equal(steps[OURS](), steps[PEER]())
    return compare(steps, repeats, warmup=3)
