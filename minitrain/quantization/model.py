"""Quantizes a whole model block by block: each is calibrated on the outputs of the blocks before
it, already quantized.

    for each block:    prepare it (AWQ, SmoothQuant: its function stays)
        for each stage:    q k v | o | gate up | down
            collect its input statistics, round its weights, replace its layers
        run the quantized block: the next one's input

So all later layers see each error and compensate for it. Embedding, norms, routers and head stay
unquantized. Cost: at most four forwards of the calibration batches, since one that calibrates a
stage stops there, and the method's own. Paper: GPTQ (arXiv:2210.17323), section 4; true-sequential:
its README.

A mixture's experts are split into one linear layer per matrix; each is calibrated on the tokens
routed to it, all experts in one forward. Layers that no token reaches are rounded to nearest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

import torch
from torch import nn

from minitrain.data.loader import Batch
from minitrain.errors import InputError, unknown_name
from minitrain.model.experts.grouped import PARTS, Experts, put_together, take_apart
from minitrain.model.transformer import Transformer
from minitrain.quantization.calibration import Calibration, InputStatistics
from minitrain.quantization.formats.tiling import Shape
from minitrain.quantization.formats.weight import Format
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.methods.method import RTN, Method, nearest, weight_only

Progress = Callable[[str], object]  # called with a layer's path when it is quantized


@torch.no_grad()
def quantize_model(
    model: Transformer,
    formats: Format | Mapping[str, Format],
    method: Method = RTN,
    batches: Iterable[Batch] = (),
    progress: Progress = lambda name: None,
    missed: Progress = lambda name: None,
) -> Transformer:
    """In place: the blocks' linear layers in `formats`, one for all, or one per path
    ("blocks.3.mlp.down"); layers without one stay unquantized. `batches`: for calibrated methods.
    `missed`: called with the path of each expert layer that none of their tokens reached.

    InputError before anything is changed where the model, the formats or the batches do not fit.
    """
    chosen = formats_by_layer(model, formats, method)
    if any(".experts." in name for name in chosen):
        take_apart(model)
    calibration = Calibration(model, batches) if method.calibrated else None
    for index, block in enumerate(model.blocks):
        prefix = f"blocks.{index}."
        own = {n.removeprefix(prefix): f for n, f in chosen.items() if n.startswith(prefix)}
        blind = _quantize_block(
            block, own, method, calibration, lambda name, p=prefix: progress(p + name)
        )
        for name in blind:
            missed(prefix + name)
        if calibration is not None:
            calibration.advance(block)
    return model


@torch.no_grad()
def dequantize_model(model: Transformer) -> Transformer:
    """In place: replaces layers by float ones of the dequantized weights, in the embedding's dtype.

    The model computes the same, takes a float model's bytes, and is saved like one: the base for
    merging an adapter (requantizing the sum would change it).
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, QuantLinear):
            linear = nn.Linear(layer.in_features, layer.out_features, False, device="meta")
            linear.weight, linear.bias = nn.Parameter(layer.weight.dequantize()), layer.bias
            model.set_submodule(name, linear)
    return put_together(model).to(model.embed.weight.dtype)


def layer_names(model: Transformer) -> list[str]:
    """The paths of the linear layers in a model's blocks, which can be quantized."""
    return list(layer_shapes(model))


def layer_shapes(model: Transformer) -> dict[str, Shape]:
    """(F, D) of each of these layers by path; experts as split into matrices."""
    found = {}
    for name, module in model.blocks.named_modules(prefix="blocks"):
        if isinstance(module, nn.Linear):
            found[name] = tuple(module.weight.shape)
        elif isinstance(module, Experts):
            shapes = {part: module.get_parameter(part).shape for part in PARTS}  # (E, D, F)
            for expert in range(shapes["gate"][0]):
                found |= {f"{name}.{expert}.{p}": (s[2], s[1]) for p, s in shapes.items()}
    return found


def _quantize_block(
    block: nn.Module,
    formats: Mapping[str, Format],
    method: Method,
    calibration: Calibration | None,
    progress: Progress,
) -> list[str]:
    """Quantizes one block; returns the experts' layers that no token reached."""
    layers = {name: block.get_submodule(name) for name in formats}
    if calibration is None:
        groups = [list(layers)] if layers else []
    else:
        groups = calibration.stages(block, layers)
    if method.prepare:
        method.prepare(block, _seen(block, layers, groups, calibration), formats)
    reached = {name for names in groups for name in names}
    blind = [name for name in layers if name not in reached]
    for _, wave in groupby(groups, key=_place):
        wave = list(wave)
        seen = _seen(block, layers, wave, calibration)
        for name in (name for names in wave for name in names):
            if name in seen and ".experts." in name and not seen[name].tokens:
                blind.append(name)  # a token reached it before this block's attention was rounded
                continue
            linear = layers[name]
            held = method.round(linear.weight, seen.get(name), formats[name])
            block.set_submodule(name, method.layer(held, linear.bias, seen.get(name)))
            progress(name)
    for name in blind:
        held = nearest(layers[name].weight, None, formats[name])
        block.set_submodule(name, weight_only(held, layers[name].bias, None))
        progress(name)
    return blind


def _place(names: list[str]) -> str:
    """A key shared by layers that read one tensor, and by all experts, which are independent."""
    return re.sub(r"\.\d+\.", ".", names[0])


def _seen(
    block: nn.Module,
    layers: Mapping[str, nn.Linear],
    groups: list[list[str]],
    calibration: Calibration | None,
) -> dict[str, InputStatistics]:
    """The statistics of each layer's inputs, computed once for layers with the same input."""
    if calibration is None:
        return {}
    found = calibration.statistics(block, {names[0]: layers[names[0]] for names in groups})
    return {name: found[names[0]] for names in groups for name in names}


def formats_by_layer(
    model: Transformer, formats: Format | Mapping[str, Format], method: Method
) -> Mapping[str, Format]:
    """The format of each layer by its path; InputError where a format or the model is
    unsuitable."""
    if not isinstance(model, Transformer):
        raise InputError(
            f"quantize_model goes through the blocks of minitrain's Transformer, and this is a "
            f"{type(model).__name__}: model.save_pretrained(folder), and then model, _ = "
            "load_pretrained(folder), gives one of a Llama, Mistral, Qwen or Mixtral; other models "
            "take prepare_qat and convert_qat of quantization.layers.fake"
        )
    reads = method.calibrated and method.layer is not weight_only
    if model.config.experts and (method.prepare or reads):
        raise InputError(
            "this method moves scales between layers, or fixes those of activations, which is "
            "known for dense blocks alone: for a mixture of experts use rtn, gptq or llm-int8"
        )
    known = layer_shapes(model)
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
        if method.check:
            method.check(form, known[name])
    return chosen


def held_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, a tied matrix once."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
