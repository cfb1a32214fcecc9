"""Merges an adapter into the weights, unmerges it, and removes it.

    merge(model)               y = W' x: as fast as before it was adapted
    unmerge(model)             back, bit for bit
    merge_and_unload(model)    permanent: a plain model, ready to be saved
    with disabled(model): ...  the model as it was before, bit for bit

W' is a separate matrix beside W, until `merge_and_unload` frees W: adding s·B·A to W and
subtracting it again would leave W with both rounding errors, in bfloat16 1/256 of a weight each. A
quantized layer is merged into a dense one, in 16 or 32 bits: requantizing the sum would change it.
Paper: Hu et al., arXiv 2106.09685, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.finetuning.layer import adapted_layers
from minitrain.finetuning.methods import FullMethod, PrefixMethod, SoftMethod
from minitrain.finetuning.model import adaptation_of
from minitrain.finetuning.prompts import Prefix, PrefixKernel
from minitrain.model.swap import replace_modules
from minitrain.model.transformer import Transformer


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Makes every adapted layer compute as one dense layer, until `unmerge`; all or none.

    No gradient reaches a merged adapter. InputError for a method that cannot be merged.
    """
    _check_mergeable(model)
    layers = adapted_layers(model).values()
    merged = [layer.adapter.merged(layer.base_layer) for layer in layers]
    for layer, dense in zip(layers, merged):
        layer.merged_layer = dense


def unmerge(model: nn.Module) -> None:
    """Runs adapters beside their layers again; a no-op where nothing is merged."""
    for layer in adapted_layers(model).values():
        layer.merged_layer = None


@torch.no_grad()
def merge_and_unload(model: nn.Module) -> nn.Module:
    """Replaces each adapted layer by its merged one, one by one, and returns the model, unadapted.

    A tied embedding and head become two matrices where one of them was adapted.
    """
    _check_mergeable(model)
    for layer in adapted_layers(model).values():
        replace_modules(model, {layer: layer.adapter.merged(layer.base_layer)})
    model.adaptation = None
    if isinstance(model, Transformer):
        if model.config.tied and model.head.weight is not model.embed.weight:
            model.config = replace(model.config, tied=False)
    elif getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        head = model.get_output_embeddings()
        if head is not None and head.weight is not model.get_input_embeddings().weight:
            model.config.tie_word_embeddings = False
    return model


def unload(model: nn.Module) -> nn.Module:
    """Takes the adapter away and returns the model as it was, its weights frozen."""
    method = adaptation_of(model)
    if isinstance(method, FullMethod):
        raise InputError("full fine-tuning has changed the weights: load the model anew")
    layers = adapted_layers(model).values()
    replace_modules(model, {layer: layer.base_layer for layer in layers})
    if isinstance(method, SoftMethod):
        model.look_around = model.look_around.inner
    if isinstance(method, PrefixMethod):
        for block in model.blocks:
            if isinstance(block.attention.kernel, PrefixKernel):
                block.attention.kernel = block.attention.kernel.kernel
        del model.soft_prompt
    model.adaptation = None
    return model


@contextmanager
def disabled(model: nn.Module) -> Iterator[None]:
    """Inside the context, the model computes as before it was adapted, even if merged."""
    if isinstance(adaptation_of(model), FullMethod):
        raise InputError("full fine-tuning leaves no model before it: load that one beside this")
    switches = [*adapted_layers(model).values()]
    switches += [module for module in model.modules() if isinstance(module, Prefix)]
    before = [switch.enabled for switch in switches]
    for switch in switches:
        switch.enabled = False
    try:
        yield
    finally:
        for switch, enabled in zip(switches, before):
            switch.enabled = enabled


def _check_mergeable(model: nn.Module) -> None:
    method = adaptation_of(model)
    if method is None:
        raise InputError("there is nothing to merge: adapt(model, ...) or load_adapter(...) first")
    if isinstance(method, PrefixMethod):
        raise InputError("learned keys and values are no weights: a prefix cannot be merged")
