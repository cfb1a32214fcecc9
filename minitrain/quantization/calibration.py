"""The texts on which a model is quantized, on their way through its blocks.

    embed -> block 0 -> block 1 -> …       the whole model is never run: one block at a time, with
             what the blocks before it, already quantized, hand on

Cost: N·T·D numbers, and for each stage a forward of the block up to it.
Shapes: B batch  T tokens  D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrain.data.loader import Batch
from minitrain.data.packing import PADDING
from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask
from minitrain.model.rope import Rotation
from minitrain.model.transformer import Transformer
from minitrain.quantization.statistics import InputStatistics, stages, watched


@dataclass
class Passage:
    """One batch between two blocks."""

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
                "the text has rows with padding, and an expert's rows do not say which they are: "
                "calibrate a mixture on full rows, as pack_stream makes them"
            )
        return x[self.valid.flatten()]


class AllSeen(Exception):
    """Ends a forward: what comes after is not asked for."""


class Calibration:
    """Batches in front of the first block; `advance` moves them behind one."""

    @torch.no_grad()
    def __init__(self, model: Transformer, batches: Iterable[Batch]):
        self.passages = [_entered(model, batch) for batch in batches]
        if not self.passages:
            raise InputError("there is no text to calibrate on: give at least one batch")

    @torch.no_grad()
    def advance(self, block: nn.Module) -> None:
        for passage in self.passages:
            passage.x = passage.through(block)

    def stages(self, block: nn.Module, layers: Mapping[str, nn.Module]) -> list[list[str]]:
        """The layers of a block in the order in which they run, those of one input together. Of
        experts those that some token reaches."""
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
        """Statistics of the inputs of each layer over all texts, padding left out."""
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
