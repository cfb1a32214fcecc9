"""An adapter in PEFT's own files: adapter_config.json and adapter_model.safetensors.

    base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight        (R, I)
    └── PEFT's ──────┘└── the hub's path ─────────────┘└ the method's ┘

`PeftModel.from_pretrained` reads these files, and this module reads PEFT's. Houlsby and parallel
adapters and BitFit have no PEFT type, and get our own types in the same two files; only this
package reads LoRA over a mixture's experts. A prefix is saved as its MLP's output, without the MLP.
Loading is all or nothing: names and shapes are compared before the model is touched, and a tensor
without a matching module is refused by name.
Source: huggingface/peft, `utils/save_and_load.py`.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.finetuning.adapters.lora import LoRA, LoRAEmbedding
from minitrain.finetuning.adapters.norm import TrainedModule
from minitrain.finetuning.adapters.pissa import PiSSA
from minitrain.finetuning.layer import adapted_layers, is_conv1d
from minitrain.finetuning.merging import unload
from minitrain.finetuning.methods import LoRAMethod, PrefixMethod
from minitrain.finetuning.model import adapt, adaptation_of
from minitrain.finetuning.peft_config import REMEDY, from_peft, to_peft
from minitrain.finetuning.prompts import Prefix, Prompt
from minitrain.model.hub.config import read_json
from minitrain.model.hub.load import hub_name
from minitrain.model.transformer import Transformer
from minitrain.paths import write_atomically, write_bytes_atomically

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ROOT = "base_model.model."
SOFT = "prompt_embeddings"
# PEFT's own files omit an adapter's name; a raw state_dict of the model has it.
NAMED = re.compile(r"(\.(?:lora|ia3|ln_tuning)_\w+)\.default(?=\.|$)")


def save_adapter(model: nn.Module, folder: str | os.PathLike, base: str | None = None) -> None:
    """Writes the two files; `base`: name or folder of the base model, for loaders."""
    folder, method = Path(folder), adaptation_of(model)
    if method is None:
        raise InputError("there is no adapter to save: adapt(model, ...) first")
    layers = adapted_layers(model)
    whole = [path for path, layer in layers.items() if isinstance(layer.adapter, TrainedModule)]
    scaled = [path for path, layer in layers.items() if getattr(layer.adapter, "of_input", False)]
    rest = [path for path in layers if path not in whole]
    config = to_peft(method, *(_peft_targets(model, paths) for paths in (rest, scaled)))
    _check_all_saved(model)
    config |= {"base_model_name_or_path": base, "task_type": _task(model), "inference_mode": True}
    config["modules_to_save"] = [_hub_path(model, path) for path in whole] or None
    if any(is_conv1d(layer.base_layer) for layer in layers.values()):
        config["fan_in_fan_out"] = True
    if isinstance(method, LoRAMethod):
        config |= _patterns(model, config)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in adapter_tensors(model).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(folder / WEIGHTS, save(tensors, {"format": "pt"}))
        write_atomically(folder / CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder} cannot be written ({error}): give a folder in which you may write"
        ) from error


def _check_all_saved(model: nn.Module) -> None:
    """InputError where a trained parameter is not part of the adapter and would be lost."""
    own = {id(p) for layer in adapted_layers(model).values() for p in layer.adapter.parameters()}
    own |= {id(p) for m in model.modules() if isinstance(m, Prefix) for p in m.parameters()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in own:
            module = name.replace(".base_layer", "").rpartition(".")[0]
            raise InputError(
                f"{name} is trained and no part of the adapter, whose files would be without it: "
                f"adapt(model, …, modules_to_save=('{module}',)) before it is trained, or freeze it"
            )


def _task(model: nn.Module) -> str | None:
    """PEFT's wrapper class depends on the task; some need methods only generative models have."""
    if isinstance(model, Transformer):
        return "CAUSAL_LM"
    if not hasattr(model, "prepare_inputs_for_generation"):
        return None
    return "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"


def _patterns(model: nn.Module, config: dict) -> dict:
    """Rank and alpha of each layer that deviates from the configuration, by path."""
    own = {
        _hub_path(model, path): to_peft(adaptation_of(model).at(path), [], [])
        for path, layer in adapted_layers(model).items()
        if isinstance(layer.adapter, (LoRA, LoRAEmbedding))
    }
    return {
        pattern: {name: one[key] for name, one in own.items() if one[key] != config[key]}
        for pattern, key in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
    }


def load_adapter(model: nn.Module, folder: str | os.PathLike, trainable: bool = False) -> nn.Module:
    """Adapts a bare model from the folder's files and returns it; unless `trainable`, frozen and in
    evaluation mode, without dropout.

    The files do not record how it was trained: PiSSA loads as LoRA, a prefix without its MLP, LoRA+
    with one learning rate.
    """
    raw, stored = read_adapter(folder, model)
    paths = peft_paths(model)
    whole = _whole_in(raw, stored, paths)
    inside = (SOFT, *(f"{name}." for name in whole))
    layers = {name: _layer_of(name, paths) for name in stored if not name.startswith(inside)}
    if unknown := [name for name, path in layers.items() if path is None]:
        raise InputError(
            f"{folder} has tensors for layers that this model has not, such as {unknown[0]}: give "
            f"the model it was trained on ({raw.get('base_model_name_or_path') or 'not named'})"
        )
    layers = tuple(dict.fromkeys(layers.values()))
    if missing := _without_tensors(raw, layers, paths, model):
        raise InputError(
            f"{folder} has no tensors for {missing[0]}, and {CONFIG} names "
            f"{missing[0].rsplit('.', 1)[-1]} in target_modules: save or copy the adapter again"
        )
    whole = tuple(paths[name] for name in whole)
    method = from_peft(raw, layers, str(Path(folder) / CONFIG), whole)
    adapt(model, method)
    try:
        _copy_tensors(model, stored, folder)
    except InputError:
        unload(model)
        raise
    return model if trainable else model.requires_grad_(False).eval()


def read_adapter(folder: str | os.PathLike, model: nn.Module) -> tuple[dict, dict[str, Tensor]]:
    """The raw configuration, and the adapter's tensors by their names in the file.

    PEFT may also save tensors of the base model (an adapted embedding's weight, or its whole
    vocabulary's): copies are skipped, and one that differs from the model's is refused, unless
    modules_to_save names it.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} holds no {CONFIG}: give the folder that save_adapter or PEFT wrote"
        )
    raw = read_json(folder / CONFIG)
    try:
        stored = load_file(folder / WEIGHTS)
    except FileNotFoundError as error:
        raise InputError(f"{folder} has no {WEIGHTS} (a .bin is a pickle, and not read)") from error
    except (SafetensorError, OSError) as error:
        raise InputError(f"{folder / WEIGHTS} is damaged ({error}): copy it again") from error
    named, own = {}, dict(model.named_parameters(remove_duplicate=False))
    whole = tuple(f".{module}." for module in raw.get("modules_to_save") or ())
    own = {_bare(_peft_path(model, path)): tensor for path, tensor in own.items()}
    for name, tensor in stored.items():
        short = NAMED.sub(r"\1", name)
        if short in named:
            raise InputError(f"{folder} holds {short} twice, also as {name}: remove one")
        if _bare(short) not in own or any(module in name for module in whole):
            named[short] = tensor
        elif not _is_copy(tensor, own[_bare(short)]):
            raise InputError(
                f"{folder} holds {name}, which is another than the model's own: it was trained "
                f"whole beside the adapter, or for another model. In the first case, {REMEDY}"
            )
    return raw, named


def _bare(name: str) -> str:
    return name.replace(".base_layer.", ".")


def _is_copy(stored: Tensor, own: Tensor) -> bool:
    """Equal, but for the rounding to the coarser of two dtypes."""
    coarse = max(stored.dtype, own.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    return torch.equal(stored.to(own.device, coarse), own.detach().to(coarse))


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of the adapter, under PEFT's names; views, except where the saved form differs
    from the one in memory: a prefix with an MLP, and PiSSA."""
    method = adaptation_of(model)
    if isinstance(method, PrefixMethod):
        return {SOFT: model.soft_prompt.rows().detach()}
    named = {}
    for path, layer in adapted_layers(model).items():
        adapter = layer.adapter
        if isinstance(adapter, PiSSA):
            own = dict(zip(LoRA.peft_names.values(), adapter.factors()))
        else:
            state = adapter.state_dict()
            own = {suffix: state[name] for name, suffix in adapter.peft_names.items()}
        prefix = "" if isinstance(adapter, Prompt) else f"{_peft_path(model, path)}."
        named |= {f"{prefix}{suffix}": tensor for suffix, tensor in own.items()}
    return named


@torch.no_grad()
def _copy_tensors(model: nn.Module, stored: dict[str, Tensor], folder: str | os.PathLike) -> None:
    """Copies tensors into an adapted model; InputError unless names and shapes match."""
    if isinstance(adaptation_of(model), PrefixMethod):
        model.soft_prompt.drop_mlp()
    here = adapter_tensors(model)
    if spare := [name for name in stored if name not in here]:
        raise InputError(
            f"{folder} holds {spare[0]}, which {CONFIG} does not speak of: it is part of another "
            "kind of adapter"
        )
    if missing := [name for name in here if name not in stored]:
        raise InputError(f"{folder} lacks {missing[0]}, which {CONFIG} asks for: save it again")
    for name, tensor in here.items():
        if tensor.shape != stored[name].shape:
            raise InputError(
                f"{folder} has {name} of shape {tuple(stored[name].shape)}, and this model needs "
                f"{tuple(tensor.shape)}: give the model that it was trained on"
            )
    for name, tensor in here.items():
        tensor.copy_(stored[name])


def peft_paths(model: nn.Module) -> dict[str, str]:
    """PEFT's path of each module, base_model.model.…, -> ours."""
    return {_peft_path(model, path): path for path, _ in model.named_modules() if path}


def _peft_path(model: nn.Module, path: str) -> str:
    return ROOT + _hub_path(model, path)


def _hub_path(model: nn.Module, path: str) -> str:
    return hub_name(path) if isinstance(model, Transformer) else path


def _whole_in(raw: dict, stored: dict[str, Tensor], paths: dict[str, str]) -> list[str]:
    """PEFT's paths of the modules that a file holds in full."""
    found = []
    for name in raw.get("modules_to_save") or ():
        hits = [path for path in paths if path.endswith(f".{name}")]
        hits = [path for path in hits if any(tensor.startswith(f"{path}.") for tensor in stored)]
        if not hits:
            raise InputError(
                f"{CONFIG} names {name} in modules_to_save, and {WEIGHTS} has no tensors of a "
                "module of this model that is called so: give the model that it was trained on"
            )
        found += hits
    return found


def _layer_of(name: str, paths: dict[str, str]) -> str | None:
    """Our path of the layer that a tensor belongs to: of .ia3_l, or .lora_A.weight."""
    ends = (name.rsplit(".", count)[0] for count in (1, 2))
    return next((paths[end] for end in ends if end in paths), None)


def _without_tensors(
    raw: dict, layers: tuple[str, ...], paths: dict[str, str], model: nn.Module
) -> list[str]:
    """PEFT's paths of linear layers that `target_modules` names but that have no tensors in the
    file. A pattern, or a choice among layers, is left to the tensors' names."""
    named, chosen = raw.get("target_modules"), ("layers_to_transform", "exclude_modules")
    if not isinstance(named, list) or any(raw.get(name) is not None for name in chosen):
        return []
    ends = tuple(f".{name}" for name in named)
    targets = (path for path in paths if path.endswith(ends) and paths[path] not in layers)
    return [path for path in targets if isinstance(model.get_submodule(paths[path]), nn.Linear)]


def _peft_targets(model: nn.Module, paths: list[str]) -> list[str]:
    """Layers' names for PEFT, sorted: the last parts of their paths where these are unambiguous."""
    short = {path.rsplit(".", 1)[-1] for path in paths}
    named = [p for p, _ in model.named_modules() if p and p.rsplit(".", 1)[-1] in short]
    chosen = short if set(named) == set(paths) else paths
    return sorted({_hub_path(model, name) for name in chosen})
