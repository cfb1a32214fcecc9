"""Memory against compute: what each way of recomputing holds, and what it costs, measured.

    none    all activations, no extra       full   inputs alone, and to its end a third more FLOPs
    between them: selective, every k-th block, segments of √L blocks, the optimum for a budget

Bytes are the ledger's and FLOPs are counted, so both are exact and the same on any machine; only
the seconds are this one's. Lab: e05.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minitrain.measure.clock import compare
from minitrain.measure.flops import block_matmul_parameters, counted_flops, flops_per_token
from minitrain.measure.memory import MemoryLedger
from minitrain.measure.predicted_memory import block_bytes_per_token
from minitrain.memory.placement import (
    Layer,
    every_kth_plan,
    least_budget,
    optimal_plan,
    sqrt_plan,
    uniform_plan,
)
from minitrain.memory.segments import Segmented
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build
from minitrain.training.loss import token_weighted_loss


@dataclass(frozen=True)
class Tradeoff:
    """One way of recomputing, measured over forward and backward."""

    name: str
    way: Segmented
    saved_bytes: int  # for backward, when forward and loss are done
    peak_bytes: int  # the most that was held at any moment, weights and gradients included
    extra_flops: float  # repeated, as a fraction of the model's
    seconds: float  # median


def block_layers(
    config: ModelConfig, batch: int, length: int, dtype: torch.dtype = torch.float32
) -> list[Layer]:
    """The model's blocks as a chain for `optimal_plan`, in closed form; costs are FLOPs."""
    tokens = batch * length
    attention = 4 * config.heads * config.head_size * min(length, config.window or length)
    saved = {
        how: tokens * block_bytes_per_token(config, dtype, how)
        for how in ("none", "selective", "full")
    }
    layer = Layer(
        input_bytes=saved["full"],
        saved_bytes=saved["none"],
        selective_bytes=saved["selective"],
        cost=tokens * (2 * block_matmul_parameters(config) + attention),
        spared_cost=tokens * 2 * config.hidden_size * config.ffn_size,  # `down`
    )
    return [layer] * config.layers


def usual_ways(layers: Sequence[Layer], budget_bytes: float | None = None) -> dict[str, Segmented]:
    """Each row's name and way. The optimum is for a budget, by default a quarter of the way up from
    the least that is possible to all that is saved without recomputation."""
    count = len(layers)
    if budget_bytes is None:
        least, most = least_budget(layers), sum(layer.saved_bytes for layer in layers)
        budget_bytes = least + (most - least) / 4
    full = uniform_plan(count, "full")
    return {
        "none": Segmented(uniform_plan(count, "none")),
        "selective": Segmented(uniform_plan(count, "selective")),
        "every 2nd": Segmented(every_kth_plan(count, 2)),
        "optimal": Segmented(optimal_plan(layers, budget_bytes)),
        "full": Segmented(full),
        "full, to its end": Segmented(full, stop_early=False),
        "sqrt": Segmented(sqrt_plan(count)),
    }


def memory_against_compute(
    config: ModelConfig,
    batch: int,
    length: int,
    budget_bytes: float | None = None,
    repeats: int = 5,
    device: torch.device | str = "cpu",
) -> list[Tradeoff]:
    """The table: a step of a float32 model of this shape, once for each of the usual ways."""
    model = build(config, device)
    text = torch.randint(config.vocab_size, (batch, length + 1), device=device)
    ways = usual_ways(block_layers(config, batch, length), budget_bytes)
    steps = {name: _step(model, way, text) for name, way in ways.items()}
    timings = compare(steps, repeats).timings
    needed = batch * length * flops_per_token(config, length)
    rows = []
    for name, step in steps.items():
        saved, peak = _bytes(model, ways[name], text)
        extra = counted_flops(step) / needed - 1
        rows.append(Tradeoff(name, ways[name], saved, peak, extra, timings[name].median))
    return rows


def _loss(model: Transformer, text: Tensor) -> Tensor:
    """text (B, T+1) -> the mean cross-entropy of the next tokens."""
    targets = text[:, 1:]
    return token_weighted_loss(model(text[:, :-1]), targets, targets.numel())


def _step(model: Transformer, way: Segmented, text: Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        model.stack = way
        _loss(model, text).backward()

    return step


def _bytes(model: Transformer, way: Segmented, text: Tensor) -> tuple[int, int]:
    """What is saved when forward and loss are done, and the most held until backward has ended."""
    model.zero_grad(set_to_none=True)
    model.stack = way
    with MemoryLedger(model) as ledger:
        loss = _loss(model, text)
        saved = ledger.now["activations"]
        loss.backward()
    return saved, ledger.peak_bytes
