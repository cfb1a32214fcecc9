"""Outlier channels, planted: what large language models grow by themselves, in a small one.

From some 6.7B parameters on, a few channels of the stream are 20 to 100 times the others, in every
layer and for every token (Dettmers et al. 2022, arXiv:2208.07339, section 4). Here a few channels
of each norm are multiplied by a factor and the columns that read them divided: the model computes
what it did, and its activations are as hard to quantize as theirs.
"""

from __future__ import annotations

import torch

from minitrain.errors import InputError
from minitrain.model.transformer import Transformer
from minitrain.quantization.methods.junctions import check_float, junctions


@torch.no_grad()
def plant_outliers(
    model: Transformer, factor: float, channels: int = 4, seed: int = 0
) -> Transformer:
    """In place: `channels` of each block's two norms, drawn by `seed`, times `factor`."""
    check_float(model)
    width = model.config.hidden_size
    if not factor > 0 or not 1 <= channels <= width:
        raise InputError(
            f"{channels} channels times {factor}: give a factor above 0 and 1 to {width} channels"
        )
    generator = torch.Generator().manual_seed(seed)
    for block in model.blocks:
        for junction in junctions(block):
            if junction.after_norm:
                s = torch.ones(width)
                s[torch.randperm(width, generator=generator)[:channels]] = 1 / factor
                junction.rescale(s.to(junction.producer.weight))
    return model
