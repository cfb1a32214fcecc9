"""`adapt(model, "lora", rank=8)`: a model that learns by one method, and by nothing else.

    model = adapt(model, "lora", rank=8, targets=("q", "v"))
    model = adapt(model, "dora", rank=16)          all linear layers of all blocks
    model = adapt(model, "prefix", tokens=20)
    trained, total = trainable_parameters(model)

The model is changed in place and returned; everything that was there before is frozen, so that an
optimizer of the parameters that ask for gradients (`adapter_groups`) holds the adapter's state and
no more. lora, dora, … need layers with names only: any model's will do. prefix and prompt use the
slots of a `Transformer`. What each method does, costs and is published in: adapters/, prompts/.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from minitrain.errors import InputError, unknown_name
from minitrain.finetuning.adapters.bias import BitFit
from minitrain.finetuning.adapters.bottleneck import Houlsby, Parallel
from minitrain.finetuning.adapters.dora import DoRA
from minitrain.finetuning.adapters.embedding import LoRAEmbedding
from minitrain.finetuning.adapters.experts import LoRAExperts
from minitrain.finetuning.adapters.ia3 import IA3
from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.adapters.norm import TunedNorm
from minitrain.finetuning.adapters.pissa import PiSSA
from minitrain.finetuning.layer import Adapted, Adapter, LinearLike
from minitrain.finetuning.methods import (
    ALL_LINEAR,
    METHODS,
    BitFitMethod,
    BottleneckMethod,
    FullMethod,
    IA3Method,
    LoRAMethod,
    Method,
    NormMethod,
    PrefixMethod,
    PromptMethod,
)
from minitrain.finetuning.prompts.prefix import Prefix, add_prefix
from minitrain.finetuning.prompts.prompt import add_prompt
from minitrain.model.experts.grouped import Experts
from minitrain.model.hub.weights import HUB_PARTS
from minitrain.model.transformer import Transformer

Model = TypeVar("Model", bound=nn.Module)
OTHER_NAMES = {part: (hub.rsplit(".", 1)[-1],) for part, hub in HUB_PARTS.items()}  # q: q_proj
OTHER_NAMES |= {theirs[0]: (ours,) for ours, theirs in OTHER_NAMES.items()}


def adapt(model: Model, method: str | Method = "lora", *, seed: int = 0, **options: Any) -> Model:
    """Adds the method's adapter, freezes the rest, and returns the model.

    `method`: a name of METHODS with `options` of its dataclass, or one of these itself. `seed`
    draws what is random, alike on every rank. InputError where a target is no layer of the model.
    """
    method = find_method(method, options)
    if adaptation_of(model) is not None:
        raise InputError(
            "this model is adapted already: merge_and_unload(model) or unload(model) first"
        )
    generator = torch.Generator().manual_seed(seed)
    if isinstance(method, (PrefixMethod, PromptMethod)):
        _check_transformer(model, method)
        model.requires_grad_(False)
        if isinstance(method, PrefixMethod):
            add_prefix(model, Prefix(model, method.tokens, method.width, generator))
        else:
            add_prompt(model, method.tokens, generator)
    elif isinstance(method, FullMethod):
        model.requires_grad_(True)
    else:
        found = find_layers(model, method.targets)
        adapters = {path: make_adapter(layer, path, method, generator) for path, layer in found}
        model.requires_grad_(False)
        for path, adapter in adapters.items():
            model.set_submodule(path, Adapted(model.get_submodule(path), adapter))
    model.adaptation = method
    return model


def find_method(method: str | Method, options: dict[str, Any]) -> Method:
    if is_dataclass(method) and not isinstance(method, type):
        if options:
            raise InputError(f"{method} has its options already: give it alone, or a name")
        return method
    if method not in METHODS:
        raise unknown_name("method", str(method), METHODS)
    make = METHODS[method]
    known = [field.name for field in fields(getattr(make, "func", make))]
    for name in options:
        if name not in known:
            if not known:
                raise InputError(f"method '{method}' has no options, and {name} was given")
            raise unknown_name(f"option of method '{method}'", name, [*known, "seed"])
    return make(**options)


def adaptation_of(model: nn.Module) -> Method | None:
    """By which method the model learns; None: it has not been adapted."""
    return getattr(model, "adaptation", None)


def trainable_parameters(model: nn.Module) -> tuple[int, int]:
    """How many numbers are trained, and how many there are in all; shared ones count once.

    A layer in 4 bits counts its bytes as it stores them.
    """
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)


def find_layers(model: nn.Module, targets: tuple[str, ...]) -> list[tuple[str, nn.Module]]:
    """Path and layer of all whose path is a target or ends with one, in our names or the hub's.

    Each target must find some; of ALL_LINEAR, which are the default, a model of experts has fewer,
    and `experts` are what LoRA may have there besides.
    """
    named = [(path, module) for path, module in model.named_modules() if path]
    found = set()
    for target in targets:
        ends = tuple(f".{name}" for name in (target, *OTHER_NAMES.get(target, ())))
        hits = {path for path, _ in named if f".{path}".endswith(ends)}
        if not hits and targets != ALL_LINEAR:
            raise unknown_name("layer", target, {path.rsplit(".", 1)[-1] for path, _ in named})
        found |= hits
    if not found:
        raise InputError(
            f"this {type(model).__name__} has no layers called {', '.join(targets)}: name its own "
            "with targets=(…)"
        )
    return [(path, module) for path, module in named if path in found]


def check_rank(model: nn.Module, method: Method) -> None:
    """InputError where LoRA's rank is more than a matrix of one of its layers can have: what is
    beyond that costs, and can learn nothing more. Files may hold such (PiSSA's have twice its
    rank), so `adapt` does not ask."""
    if not isinstance(method, LoRAMethod):
        return
    for path, layer in find_layers(model, method.targets):
        most = min(_matrix_sizes(layer), default=method.rank)
        if method.rank > most:
            raise InputError(
                f"rank {method.rank} is more than {path} can have, whose matrix is "
                f"{' x '.join(map(str, _matrix_sizes(layer)))}: use {most} or less, or targets "
                "without it"
            )


def _matrix_sizes(layer: nn.Module) -> tuple[int, ...]:
    """(O, I); of an embedding (V, D), of experts (D, F); () where it has no matrix."""
    if isinstance(layer, LinearLike):
        return layer.out_features, layer.in_features
    weights = [p for p in layer.parameters(recurse=False) if p.ndim > 1]
    return tuple(weights[0].shape[-2:]) if weights else ()


def make_adapter(
    layer: nn.Module, path: str, method: Method, generator: torch.Generator
) -> Adapter:
    """The adapter for one layer; InputError where it is none that the method can adapt."""
    if isinstance(method, NormMethod):
        if isinstance(layer, LinearLike) or not list(layer.parameters(recurse=False)):
            raise InputError(f"{path} is no norm with weights: give targets such as ('mlp_norm',)")
        return TunedNorm(layer)
    if isinstance(method, BottleneckMethod) and method.parallel:
        return Parallel(
            layer, width_of(layer, path), method.bottleneck, generator, scale=method.scale
        )
    if isinstance(method, LoRAMethod) and isinstance(layer, nn.Embedding):
        if method.dora or method.pissa:
            raise InputError(f"{path} is an embedding: use lora or rslora there")
        return LoRAEmbedding(layer, method.rank, method.scaling, generator)
    if isinstance(method, LoRAMethod) and isinstance(layer, Experts):
        if method.dora or method.pissa or method.dropout:
            raise InputError(
                f"{path} holds the matrices of all experts, beside which only lora and rslora "
                "learn, without dropout: use one of them there"
            )
        return LoRAExperts(layer, method.rank, method.scaling, generator)
    if not isinstance(layer, LinearLike):
        raise InputError(
            f"{path} is a {type(layer).__name__} and no linear layer: give targets with "
            "in_features and out_features, such as ('q', 'v')"
        )
    if isinstance(method, LoRAMethod):
        kind = DoRA if method.dora else PiSSA if method.pissa else LoRA
        return kind(layer, method.rank, method.scaling, method.dropout, generator)
    if isinstance(method, IA3Method):
        ends = tuple(f".{name}" for name in method.inputs)
        return IA3(layer, of_input=f".{path}".endswith(ends) if ends else False)
    if isinstance(method, BottleneckMethod):
        return Houlsby(layer, layer.out_features, method.bottleneck, generator)
    assert isinstance(method, BitFitMethod), f"no adapter for {method}"
    return BitFit(layer)


def width_of(layer: nn.Module, path: str) -> int:
    """How many features a sublayer reads: as many as its first linear layer."""
    for module in layer.modules():
        if isinstance(module, LinearLike):
            return module.in_features
    raise InputError(f"{path} has no linear layer: give targets such as ('mlp', 'attention')")


def _check_transformer(model: nn.Module, method: Method) -> None:
    if not isinstance(model, Transformer):
        raise InputError(
            f"{type(method).__name__} uses slots of minitrain's Transformer, and this is a "
            f"{type(model).__name__}: read it with load_pretrained, or use lora"
        )
