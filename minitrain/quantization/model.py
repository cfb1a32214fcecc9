"""A whole model in few bits, block by block: each is calibrated on what the ones before, already
quantized, hand on.

    for each block:    prepare it (AWQ, SmoothQuant: its function stays)
        for each stage:    q k v | o | gate up | down
            see what the stage reads, round its weights, exchange its layers
        run the block as it is now: the next one's input

So an error is seen, and made up for, by all that come after it. Embedding, norms and head keep
their bits. Cost: four forwards of the calibration text at most, since one that calibrates a stage
ends there, and the method's own. Paper: GPTQ (arXiv:2210.17323), section 4; true-sequential: its
README.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from minitrain.data.loader import Batch
from minitrain.errors import InputError, unknown_name
from minitrain.model.transformer import Transformer
from minitrain.quantization.calibration import Calibration
from minitrain.quantization.formats.weight import Format
from minitrain.quantization.methods.method import RTN, Method
from minitrain.quantization.statistics import InputStatistics

Progress = Callable[[str], object]  # called with a layer's path when it is quantized


@torch.no_grad()
def quantize_model(
    model: Transformer,
    formats: Format | Mapping[str, Format],
    method: Method = RTN,
    batches: Iterable[Batch] = (),
    progress: Progress = lambda name: None,
) -> Transformer:
    """In place: the blocks' linear layers in `formats`, one for all or each its own by its path
    ("blocks.3.mlp.down"), where those without one stay. `batches`: texts, for calibrated methods.

    InputError before anything is changed where the model, the formats or the texts do not fit.
    """
    chosen = formats_by_layer(model, formats, method)
    calibration = Calibration(model, batches) if method.calibrated else None
    for index, block in enumerate(model.blocks):
        prefix = f"blocks.{index}."
        own = {n.removeprefix(prefix): f for n, f in chosen.items() if n.startswith(prefix)}
        _quantize_block(block, own, method, calibration, lambda name, p=prefix: progress(p + name))
        if calibration is not None:
            calibration.advance(block)
    return model


def layer_names(model: Transformer) -> list[str]:
    """The paths of the linear layers in a model's blocks, which can be quantized."""
    return [
        f"blocks.{name}"
        for name, module in model.blocks.named_modules()
        if isinstance(module, nn.Linear)
    ]


def _quantize_block(
    block: nn.Module,
    formats: Mapping[str, Format],
    method: Method,
    calibration: Calibration | None,
    progress: Progress,
) -> None:
    layers = {name: block.get_submodule(name) for name in formats}
    if calibration is None:
        groups = [list(layers)]
    else:
        groups = calibration.stages(block, layers)
    if method.prepares:
        method.prepare(block, _seen(block, layers, groups, calibration), formats)
    for names in groups:
        seen = _seen(block, layers, [names], calibration)
        for name in names:
            linear = layers[name]
            held = method.round(linear.weight, seen.get(name), formats[name])
            block.set_submodule(name, method.layer(held, linear.bias, seen.get(name)))
            progress(name)


def _seen(
    block: nn.Module,
    layers: Mapping[str, nn.Linear],
    groups: list[list[str]],
    calibration: Calibration | None,
) -> dict[str, InputStatistics]:
    """The statistics of each layer's inputs, counted once for all that read the same."""
    if calibration is None:
        return {}
    found = calibration.statistics(block, {names[0]: layers[names[0]] for names in groups})
    return {name: found[names[0]] for names in groups for name in names}


def formats_by_layer(
    model: Transformer, formats: Format | Mapping[str, Format], method: Method
) -> Mapping[str, Format]:
    """The format of each layer by its path; InputError where one does not fit, or the model."""
    if model.config.experts:
        raise InputError(
            f"a mixture of {model.config.experts} experts holds most of its weights in tensors of "
            "all experts, which are not linear layers: quantize a dense model"
        )
    known = layer_names(model)
    if not known:
        raise InputError(
            "no linear layer is left in the model's blocks: it is quantized already; take the "
            "original"
        )
    chosen = formats if isinstance(formats, Mapping) else dict.fromkeys(known, formats)
    if not chosen:
        raise InputError("no layer has a format: give one for all, or a mapping from layers' paths")
    for name, form in chosen.items():
        if name not in known:
            raise unknown_name("linear layer of this model's blocks", name, known)
        method.check(form, tuple(model.get_submodule(name).weight.shape))
    return chosen


def held_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, a tied matrix once."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())
