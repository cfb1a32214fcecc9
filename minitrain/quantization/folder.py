"""Saves a quantized model as a folder, which loads again bit for bit.

    config.json          the model's own; under quantization_config each layer's format by path
    model.safetensors    the hub's names; for a quantized layer its parts: ….up_proj.codes, .scale
    tokenizer.json …     as they were

The layout and the model_type in its config.json are this package's own: `transformers` only warns
about an unknown quantization, and would fill in random weights. Because of the type, it and
`load_pretrained` refuse the folder.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.experts.grouped import take_apart
from minitrain.model.hub.config import config_of, read_json
from minitrain.model.hub.load import WEIGHTS, describe, hub_name, open_weights, write_folder
from minitrain.model.hub.text import TextFiles, read_text_files
from minitrain.model.transformer import Transformer, empty
from minitrain.quantization.formats.names import named
from minitrain.quantization.formats.tiling import Shape
from minitrain.quantization.formats.weight import QuantizedWeight
from minitrain.quantization.layers.int8 import Int8Linear
from minitrain.quantization.layers.linear import QuantLinear

OURS = "minitrain-quantized"  # model_type
SAVED = (nn.Linear, QuantLinear, Int8Linear)


def save_quantized(
    model: Transformer, folder: str | os.PathLike, text: TextFiles | None = None
) -> None:
    """Writes a model that `quantize_model` made, with the tokenizer's files.

    InputError where no layer is a QuantLinear, or one is only for training or execution.
    """
    layers = {n: m for n, m in model.named_modules() if isinstance(m, QuantLinear)}
    for name, module in model.named_modules():
        if hasattr(module, "in_features") and type(module) not in SAVED:
            raise InputError(
                f"{name} is a {type(module).__name__}, which has no form in a file: save the model "
                "before accelerate(), or after convert_qat()"
            )
    if not layers:
        raise InputError(
            "no layer of this model is a QuantLinear, as quantize_model leaves them: a float model "
            "is saved with save_pretrained"
        )
    dtype = next(model.parameters()).dtype
    files = describe(model.config, text or TextFiles(), dtype)
    config = json.loads(files["config.json"])
    config["quantization_config"] = {
        "model_type": config["model_type"],
        "layers": {name: layer.settings for name, layer in layers.items()},
    }
    config["model_type"] = OURS
    files["config.json"] = (json.dumps(config, indent=2) + "\n").encode()
    tensors = {hub_name(name): tensor.contiguous() for name, tensor in own_tensors(model).items()}
    write_folder(folder, files, lambda new: save_file(tensors, new / WEIGHTS, {"format": "pt"}))


def is_quantized(folder: str | os.PathLike) -> bool:
    """True if `save_quantized` wrote the folder."""
    file = Path(folder) / "config.json"
    return file.is_file() and read_json(file).get("model_type") == OURS


def load_quantized(
    folder: str | os.PathLike, device: torch.device | str = "cpu"
) -> tuple[Transformer, TextFiles]:
    """Loads the model and text files that `save_quantized` wrote; InputError where a part is
    missing, damaged or its shape contradicts the configuration."""
    folder = Path(folder)
    if not is_quantized(folder):
        raise InputError(
            f"{folder} was not written by save_quantized: load a float model with load_pretrained"
        )
    raw = read_json(folder / "config.json")
    stated = raw.pop("quantization_config")
    config = config_of({**raw, "model_type": stated["model_type"]}, folder / "config.json")
    with ExitStack() as stack:
        files = open_weights(folder, stack)
        stored = {name: file.get_tensor(name).to(device) for name, file in files.items()}
    embedding = stored.get(hub_name("embed.weight"))
    model = empty(config, device, torch.float32 if embedding is None else embedding.dtype)
    if any(".experts." in path for path in stated["layers"]):
        take_apart(model)
    for path, settings in stated["layers"].items():
        model.set_submodule(path, _unfilled(settings, model.get_submodule(path)))
    expected = own_tensors(model)
    if wrong := {hub_name(name) for name in expected} ^ stored.keys():
        raise InputError(
            f"{folder / WEIGHTS} and config.json do not fit together, {min(wrong)} for one: "
            "quantize the model again"
        )
    for name, tensor in expected.items():
        found = stored[hub_name(name)]
        if found.shape != tensor.shape or found.is_floating_point() != tensor.is_floating_point():
            raise InputError(
                f"{name} in {folder / WEIGHTS} is {tuple(found.shape)} {found.dtype}, and "
                f"config.json means {tuple(tensor.shape)} {tensor.dtype}: quantize the model again"
            )
        tensor.copy_(found)
    text = read_text_files(folder)
    model.end_tokens = text.eos_ids
    return model, text


def own_tensors(model: Transformer) -> dict[str, Tensor]:
    """Parameters and buffers by path, without a tied head's."""
    tied = {"head.weight"} if model.config.tied else set()
    state = model.state_dict()
    return {name: tensor for name, tensor in state.items() if name not in tied}


def _unfilled(settings: dict, linear: nn.Linear) -> QuantLinear:
    """An empty layer built from a file's settings, before its tensors are loaded."""
    weight = linear.weight
    held = _zeros(settings["format"], tuple(weight.shape), weight.device)
    held = replace(held, tensors={name: torch.empty_like(t) for name, t in held.tensors.items()})
    if "int8" not in settings:
        return QuantLinear(held, linear.bias)
    own = settings["int8"]
    scale = torch.zeros((), device=weight.device) if own["fixed"] else None
    threshold = math.inf if own["threshold"] is None else own["threshold"]
    return Int8Linear(held, linear.bias, scale, threshold)


@lru_cache
def _zeros(name: str, shape: Shape, device: torch.device) -> QuantizedWeight:
    return named(name).quantize(torch.zeros(shape, device=device))
