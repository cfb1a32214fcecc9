"""The target as its own draft model: in fewer bits, or in fewer layers. Nothing is trained.

    quantized_draft(target, "int8")    every matrix, the head's too, in 8 bits through the packed
                                       kernels: a quarter of the bytes, and nearly the same tokens
    first_layers(target, 4)            4 of its blocks, then its norm and head: no memory at all

One token at a time a pass waits for weights, so c, a draft's cost, is about its share of the bytes.
The head belongs to them: in a small model with a large vocabulary it is most of what is read, and a
draft that keeps it whole is not cheap. Formats without a kernel save bytes and no time.
Papers: gpt-fast (2023), int4 drafts; Zhang et al., Draft & Verify, arXiv 2309.08168; Elhoushi et
al., LayerSkip, 2404.16710. Lab: e09b.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import nn

from minitrain.errors import InputError
from minitrain.model.transformer import Transformer, empty
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.layers.packed_kernels import accelerate, kernel_for
from minitrain.quantization.model import quantize_model


def quantized_draft(target: Transformer, form: str = "int8", fast: bool = True) -> Transformer:
    """A copy of the target with the blocks' matrices and the head in this format; embedding and
    norms are shared. `fast`: through a packed kernel, where the format has one on this device."""
    draft = first_layers(target, target.config.layers)
    draft.blocks = copy.deepcopy(target.blocks)
    quantize_model(draft, named(form))
    draft.head = QuantLinear(named(form).quantize(target.head.weight))
    if fast and any(
        type(layer) is QuantLinear and kernel_for(layer.weight) for layer in draft.modules()
    ):
        accelerate(draft)
    return draft


def first_layers(target: Transformer, layers: int) -> Transformer:
    """The target's first blocks, and its own embedding, norm and head: parameters are shared."""
    if not 1 <= layers <= target.config.layers:
        raise InputError(
            f"the target has {target.config.layers} layers: draft with 1 to "
            f"{max(1, target.config.layers - 1)} of them, not {layers}"
        )
    draft = empty(replace(target.config, layers=1), "meta")
    draft.config = replace(target.config, layers=layers)
    draft.embed, draft.norm, draft.head = target.embed, target.norm, target.head
    draft.blocks = nn.ModuleList(target.blocks[:layers])
    return draft
