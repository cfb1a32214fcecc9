"""Calibration statistics of a linear layer's inputs: all that the methods need.

    second moment   X^T X / tokens   (D, D)   the error of any weight change:  ||X ΔW^T||²
    mean |x|        (D,)                      AWQ: which columns matter
    max |x|         (D,)                      SmoothQuant, static scales: which are outliers

Cost: 2·D² FLOPs a token; 8·D² bytes a layer. Sums are float64: text by text or at once is the same.
Shapes: T tokens  D width in  F width out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from minitrain.errors import InputError


class InputStatistics:
    """Adds up over the texts that a layer reads."""

    def __init__(self, width: int, device: torch.device | str = "cpu"):
        self.tokens = 0
        self.products = torch.zeros(width, width, dtype=torch.float64, device=device)
        self.magnitudes = torch.zeros(width, dtype=torch.float64, device=device)
        self.max_abs = torch.zeros(width, device=device)

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """x (T, D)"""
        x = x.detach().float()
        self.tokens += len(x)
        self.products += (x.t() @ x).double()
        self.magnitudes += x.abs().sum(dim=0)
        self.max_abs = torch.maximum(self.max_abs, x.abs().amax(dim=0))

    @property
    def second_moment(self) -> Tensor:
        """(D, D) float64; GPTQ's Hessian is twice this."""
        self._check()
        return self.products / self.tokens

    @property
    def mean_abs(self) -> Tensor:
        """(D,) float32"""
        self._check()
        return (self.magnitudes / self.tokens).float()

    def _check(self) -> None:
        if not self.tokens:
            raise InputError("no token has passed this layer: calibrate on at least one text")
        if not self.products.isfinite().all():
            raise InputError(
                "the calibration inputs hold inf or nan: check that the model's own perplexity on "
                "them is finite before it is quantized"
            )

    def output_error(self, change: Tensor) -> float:
        """Mean over tokens of ||ΔW x||², for a change (F, D) of the weight."""
        change = change.double()
        return ((change @ self.second_moment) * change).sum().item()


@contextmanager
def watched(layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Within it, `see(name, x)` gets what each layer reads, in the order in which they read."""
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: see(name, inputs[0]))
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def stages(layers: Mapping[str, nn.Module], run: Callable[[], object]) -> list[list[str]]:
    """The layers in the order in which `run` calls them; those that read one tensor together.

    In a block of a Transformer: q, k, v; then o; then gate, up; then down. What a stage reads is
    settled as soon as the stages before it are.
    """
    order: list[tuple[Tensor, list[str]]] = []

    def see(name: str, x: Tensor) -> None:
        same = next((names for tensor, names in order if tensor is x), None)
        if same is None:
            order.append((x, [name]))
        elif name not in same:
            same.append(name)

    with watched(layers, see):
        run()
    return [names for _, names in order]
