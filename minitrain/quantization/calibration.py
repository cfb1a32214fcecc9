"""Calibration: runs batches through a model block by block, and collects input statistics.

    embed -> block 0 -> block 1 -> …       the whole model is never run: one block at a time, on
             the outputs of the blocks before it, already quantized

    second moment   X^T X / tokens   (D, D)   the error of any weight change:  ||X ΔW^T||²
    mean |x|        (D,)                      AWQ: which columns matter
    max |x|         (D,)                      SmoothQuant, static scales: which are outliers

Cost: N·T·D numbers for N·T tokens between two blocks, and for each stage a forward of the block up
to it; the statistics cost 2·D² FLOPs a token and 8·D² bytes a layer. Sums are float64, so splitting
into batches does not change them. Shapes: B batch  T tokens  D width in  F width out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrain.data.loader import Batch
from minitrain.data.packing import PADDING
from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask
from minitrain.model.rope import Rotation
from minitrain.model.transformer import Transformer


class InputStatistics:
    """Sums over all tokens that a layer reads."""

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
            raise InputError("no token has passed this layer: calibrate on at least one batch")
        if not self.products.isfinite().all():
            raise InputError(
                "the calibration inputs hold inf or nan: check that the model's own perplexity on "
                "them is finite before it is quantized"
            )

    def output_error(self, change: Tensor) -> float:
        """Mean over tokens of ||ΔW x||², for a change (F, D) of the weight."""
        change = change.double()
        return ((change @ self.second_moment) * change).sum().item()


@dataclass
class Passage:
    """One batch of activations between two blocks."""

    x: Tensor  # (B, T, D)
    turns: Rotation
    mask: Tensor | Mask | None
    valid: Tensor  # (B, T) bool: not padding

    def through(self, block: nn.Module) -> Tensor:
        return block(self.x, self.turns, self.mask)

    def tokens(self, x: Tensor) -> Tensor:
        """A layer's inputs, (B, T, D), (B·T, D) or an expert's rows, -> (T', D) without padding."""
        if x.shape[:-1] == self.valid.shape:
            return x[self.valid]
        if self.valid.all():
            return x
        if len(x) != self.valid.numel():
            raise InputError(
                "the batch has rows with padding, and an expert's rows do not say which they are: "
                "calibrate a mixture on full rows, as pack_stream makes them"
            )
        return x[self.valid.flatten()]


class AllSeen(Exception):
    """Stops a forward early: the remaining layers are not needed."""


class Calibration:
    """Batches at the input of the first block; `advance` runs them through the next."""

    @torch.no_grad()
    def __init__(self, model: Transformer, batches: Iterable[Batch]):
        self.passages = [_entered(model, batch) for batch in batches]
        if not self.passages:
            raise InputError("no batch to calibrate on: give at least one")

    @torch.no_grad()
    def advance(self, block: nn.Module) -> None:
        for passage in self.passages:
            passage.x = passage.through(block)

    def stages(self, block: nn.Module, layers: Mapping[str, nn.Module]) -> list[list[str]]:
        """The layers of a block in execution order, grouped by input; only experts that some token
        reaches."""
        found: list[list[str]] = []
        for passage in self.passages:
            missing = layers.keys() - {name for names in found for name in names}
            if not missing:
                break
            rest = {name: layer for name, layer in layers.items() if name in missing}
            found += stages(rest, lambda of=passage: of.through(block))
        return found

    @torch.no_grad()
    def statistics(
        self, block: nn.Module, layers: Mapping[str, nn.Linear]
    ) -> dict[str, InputStatistics]:
        """Statistics of the inputs of each layer over all batches, padding left out."""
        found = {
            name: InputStatistics(layer.in_features, layer.weight.device)
            for name, layer in layers.items()
        }
        for passage in self.passages:
            missing = set(layers)

            def see(name: str, x: Tensor, of: Passage = passage, missing: set = missing) -> None:
                found[name].add(of.tokens(x))
                missing.discard(name)
                if not missing:
                    raise AllSeen

            with suppress(AllSeen), watched(layers, see):
                passage.through(block)
        return found


def _entered(model: Transformer, batch: Batch) -> Passage:
    batch = batch.to(model.embed.weight.device)
    x = model.embed(batch.tokens)
    turns, mask = model.surroundings(x, batch.documents, batch.positions)
    return Passage(x, turns, mask, batch.documents != PADDING)


@contextmanager
def watched(layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Inside the context, `see(name, x)` is called with each layer's input, in execution order."""
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
    """The layers in the order in which `run` calls them, grouped by input tensor.

    In a block of a Transformer: q, k, v; then o; then gate, up; then down. A stage's input depends
    only on the stages before it.
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
