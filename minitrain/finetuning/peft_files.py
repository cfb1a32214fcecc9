"""An adapter in PEFT's own files: adapter_config.json and adapter_model.safetensors.

    base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight        (R, I)
    └── PEFT's ──────┘└── the hub's path ─────────────┘└ the method's ┘

What is written here, `PeftModel.from_pretrained` reads, and the other way round. Houlsby's and
parallel adapters and BitFit have no PEFT type, and types of our own in the same two files; LoRA of
a mixture's experts (adapters/experts.py) is read here alone. A prefix is written as what its MLP
makes, and the MLP is not. Reading is all or nothing: names and shapes are compared before the model
is touched, and a tensor without a place is refused by its name.
Source: huggingface/peft, `utils/save_and_load.py`.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.finetuning.adapt import adapt, adaptation_of
from minitrain.finetuning.adapters.embedding import LoRAEmbedding
from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.adapters.norm import TrainedModule
from minitrain.finetuning.adapters.pissa import PiSSA
from minitrain.finetuning.layer import Adapter, adapted_layers, is_conv1d
from minitrain.finetuning.merging import check_uncut, unload
from minitrain.finetuning.methods import LoRAMethod, PrefixMethod
from minitrain.finetuning.peft_config import REMEDY, from_peft, to_peft
from minitrain.finetuning.prompts.prefix import Prefix
from minitrain.finetuning.prompts.prompt import Prompt
from minitrain.model.hub.config import read_json
from minitrain.model.hub.load import hub_name
from minitrain.model.transformer import Transformer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ROOT = "base_model.model."
SOFT = "prompt_embeddings"
# PEFT's own files leave an adapter's name out; a model's state_dict, saved as it is, has it.
NAMED = re.compile(r"(\.(?:lora|ia3|ln_tuning)_\w+)\.default(?=\.|$)")


def save_adapter(model: nn.Module, folder: str | Path, base: str | None = None) -> None:
    """Writes the two files; `base`: name or folder of the model under it, for readers."""
    folder, method = Path(folder), adaptation_of(model)
    if method is None:
        raise InputError("there is no adapter to save: adapt(model, ...) first")
    layers = {path: layer.adapter for path, layer in adapted_layers(model).items()}
    whole = [path for path, adapter in layers.items() if isinstance(adapter, TrainedModule)]
    inputs = [path for path, adapter in layers.items() if getattr(adapter, "of_input", False)]
    rest = [path for path in layers if path not in whole]
    targets, inputs = (_peft_targets(model, paths) for paths in (rest, inputs))
    whole = [_peft_path(model, path).removeprefix(ROOT) for path in whole]  # PEFT compares ends
    config = to_peft(method, targets, inputs, whole, getattr(model, "config", None))
    config |= {"base_model_name_or_path": base}
    _check_all_saved(model)
    if not isinstance(model, Transformer):
        config |= _of_other_model(model, config)
    if isinstance(method, LoRAMethod) and (method.rank_pattern or method.alpha_pattern):
        config |= _patterns(model, config)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in adapter_tensors(model).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = {name: folder / f".{name}.new" for name in (WEIGHTS, CONFIG)}
        save_file(tensors, new[WEIGHTS], {"format": "pt"})
        new[CONFIG].write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        for name, path in new.items():
            os.replace(path, folder / name)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder} cannot be written ({error}): give a folder in which you may write"
        ) from error


def _check_all_saved(model: nn.Module) -> None:
    """InputError where something is trained that is no part of the adapter, and would be lost."""
    own = {id(p) for layer in adapted_layers(model).values() for p in layer.adapter.parameters()}
    own |= {id(p) for m in model.modules() if isinstance(m, Prefix) for p in m.parameters()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in own:
            module = name.replace(".base_layer", "").rpartition(".")[0]
            raise InputError(
                f"{name} is trained and no part of the adapter, whose files would be without it: "
                f"adapt(model, …, modules_to_save=('{module}',)) before it is trained, or freeze it"
            )


def _of_other_model(model: nn.Module, config: dict) -> dict:
    """PEFT wraps a model by its task, of which only generating ones have what it asks for."""
    kind = getattr(model, "config", None)
    generates = hasattr(model, "prepare_inputs_for_generation")
    task = "SEQ_2_SEQ_LM" if getattr(kind, "is_encoder_decoder", False) else "CAUSAL_LM"
    turned = any(is_conv1d(layer.base_layer) for layer in adapted_layers(model).values())
    own = {"fan_in_fan_out": turned} if "fan_in_fan_out" in config else {}
    return {"task_type": task if generates else None, **own}


def _patterns(model: nn.Module, config: dict) -> dict:
    """Rank and alpha of each layer that has another than the configuration, by its path."""
    ranks, alphas = {}, {}
    for path, layer in adapted_layers(model).items():
        if isinstance(layer.adapter, (LoRA, LoRAEmbedding)):
            own = adaptation_of(model).at(path, hub_name(path))
            name, rank = _peft_path(model, path).removeprefix(ROOT), own.rank
            twice = isinstance(layer.adapter, PiSSA)
            ranks[name], alpha = 2 * rank if twice else rank, own.alpha
            alphas[name] = own.scaling * 2 * rank if twice else alpha
    return {
        "rank_pattern": {n: r for n, r in ranks.items() if r != config["r"]},
        "alpha_pattern": {n: a for n, a in alphas.items() if a != config["lora_alpha"]},
    }


def load_adapter(model: nn.Module, folder: str | Path, trainable: bool = False) -> nn.Module:
    """Adapts a bare model as the folder's files say, and returns it; unless `trainable` frozen, and
    in evaluation mode, without dropout.

    The files do not say how it was trained: PiSSA comes as LoRA, a prefix without its MLP, LoRA+
    with one rate.
    """
    raw, stored = read_adapter(folder, model)
    paths = peft_paths(model)
    whole = _whole_in(raw, stored, paths)
    inside = tuple(f"{name}." for name in whole)
    lesser = {name: t for name, t in stored.items() if not (inside and name.startswith(inside))}
    layers, unknown = _layers_in(lesser, paths)
    if unknown:
        raise InputError(
            f"{folder} has tensors for layers that this model has not, such as {unknown[0]}: give "
            f"the model it was trained on ({raw.get('base_model_name_or_path') or 'not named'})"
        )
    if missing := _without_tensors(raw, layers, paths, model):
        raise InputError(
            f"{folder} has no tensors for {missing[0]}, and {CONFIG} names "
            f"{missing[0].rsplit('.', 1)[-1]} in target_modules: save or copy the adapter again"
        )
    whole = tuple(paths[name] for name in whole)
    method = from_peft(raw, tuple(layers), str(Path(folder) / CONFIG), whole)
    adapt(model, method)
    try:
        copy_tensors(model, stored, folder)
    except InputError:
        unload(model)
        raise
    return model if trainable else model.requires_grad_(False).eval()


def read_adapter(folder: str | Path, model: nn.Module) -> tuple[dict, dict[str, Tensor]]:
    """The configuration as it stands in the file, and the adapter's tensors by their names there.

    PEFT may write tensors of the model beside them (an adapted embedding's own, or all of its
    vocabulary's): copies are passed over, and one that is another than the model's is refused,
    unless modules_to_save names it.
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
    """All that the adapter is, under PEFT's names; views, but for what is written otherwise than
    it is kept: a prefix under its MLP, and PiSSA."""
    check_uncut(model)
    method = adaptation_of(model)
    if isinstance(method, PrefixMethod):
        return {SOFT: model.soft_prompt.rows().detach()}
    named = {}
    for path, layer in adapted_layers(model).items():
        for suffix, tensor in _own_tensors(layer.adapter).items():
            soft = isinstance(layer.adapter, Prompt)
            named[suffix if soft else f"{_peft_path(model, path)}.{suffix}"] = tensor
    return named


def _own_tensors(adapter: Adapter) -> dict[str, Tensor]:
    if isinstance(adapter, PiSSA):
        return dict(zip(LoRA.peft_names.values(), adapter.factors()))
    own = adapter.state_dict()
    return {suffix: own[name] for name, suffix in adapter.peft_names.items()}


@torch.no_grad()
def copy_tensors(model: nn.Module, stored: dict[str, Tensor], folder: str | Path) -> None:
    """Into an adapted model; InputError unless names and shapes are the same."""
    if isinstance(adaptation_of(model), PrefixMethod):
        model.soft_prompt.drop_mlp()
        here = {SOFT: model.soft_prompt.table.detach()}
    else:
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
    return ROOT + (hub_name(path) if isinstance(model, Transformer) else path)


def _whole_in(raw: dict, stored: dict[str, Tensor], paths: dict[str, str]) -> list[str]:
    """PEFT's paths of the modules that a file holds whole."""
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


def _layers_in(stored: dict[str, Tensor], paths: dict[str, str]) -> tuple[list[str], list[str]]:
    """Our paths of the layers that have tensors in a file, and names that belong to no layer."""
    found, unknown = {}, []
    for name in stored:
        ends = (name.rsplit(".", count)[0] for count in (1, 2))  # .ia3_l and .lora_A.weight
        path = next((paths[end] for end in ends if end in paths), None)
        if path is None and name != SOFT:
            unknown.append(name)
        elif path is not None:
            found[path] = None
    return list(found), unknown


def _without_tensors(
    raw: dict, layers: list[str], paths: dict[str, str], model: nn.Module
) -> list[str]:
    """PEFT's paths of linear layers that `target_modules` names, and that a file says nothing of.
    A pattern, or a choice among layers, is left to the tensors' names."""
    named, chosen = raw.get("target_modules"), ("layers_to_transform", "exclude_modules")
    if not isinstance(named, list) or any(raw.get(name) is not None for name in chosen):
        return []
    ends = tuple(f".{name}" for name in named)
    targets = (path for path in paths if path.endswith(ends) and paths[path] not in layers)
    return [path for path in targets if isinstance(model.get_submodule(paths[path]), nn.Linear)]


def _peft_targets(model: nn.Module, paths: list[str]) -> list[str]:
    """Layers' names for PEFT, sorted: the last parts of their paths where these say just them."""
    short = {path.rsplit(".", 1)[-1] for path in paths}
    rename = hub_name if isinstance(model, Transformer) else str
    named = [p for p, _ in model.named_modules() if p and p.rsplit(".", 1)[-1] in short]
    return sorted({rename(name) for name in (short if set(named) == set(paths) else paths)})
