"""Work shared by the benches: random tokens, their loss, a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.measure.memory import MemoryLedger
from minitrain.model.config import preset
from minitrain.training.loss import token_weighted_loss


def random_text(name: str, batch: int, length: int, device: Any, seed: int = 0) -> Tensor:
    """(B, T+1) tokens in the vocabulary of the preset `name`."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(preset(name).vocab_size, (batch, length + 1), generator=generator)
    return text.to(device)


def next_token_loss(model: nn.Module, text: Tensor) -> Tensor:
    """text (B, T+1) -> the mean cross-entropy of the next tokens."""
    targets = text[:, 1:]
    return token_weighted_loss(model(text[:, :-1]), targets, targets.numel())


def training_step(loss: Callable[[], Tensor], optimizer: Any) -> Callable[[], Tensor]:
    """Forward, loss, backward and the optimizer; leaves no gradients, and returns the loss."""

    def step() -> Tensor:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    return step


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def peak_bytes(step: Callable[[], object], model: nn.Module) -> int:
    """The ledger's peak bytes during a step, including the model's own."""
    with MemoryLedger(model) as ledger:
        step()
    return ledger.peak_bytes
