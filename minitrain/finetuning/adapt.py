"""`adapt(model, "lora", rank=8)`: a model that learns by one method, and by nothing else.

    model = adapt(model, "lora", rank=8, targets=("q", "v"))
    model = adapt(model, "dora", rank=16)          all linear layers of all blocks
    model = adapt(model, "lora", targets="all-linear", modules_to_save="score")
    model = adapt(model, "prefix", tokens=20)
    trained, total = trainable_parameters(model)

The model is changed in place and returned; everything that was there before is frozen, so that an
optimizer of the parameters that ask for gradients (`adapter_groups`) holds the adapter's state and
no more. lora, dora, … need layers with names only: any model's will do. prefix and prompt use the
slots of a `Transformer`. What each method does, costs and is published in: adapters/, prompts/.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from minitrain.errors import InputError, unknown_name
from minitrain.finetuning.adapters.bias import BitFit
from minitrain.finetuning.adapters.bottleneck import Houlsby, Parallel
from minitrain.finetuning.adapters.dora import DoRA
from minitrain.finetuning.adapters.embedding import LoRAEmbedding
from minitrain.finetuning.adapters.experts import LoRAExperts
from minitrain.finetuning.adapters.ia3 import IA3
from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.adapters.norm import TrainedModule, TunedNorm
from minitrain.finetuning.adapters.pissa import PiSSA
from minitrain.finetuning.layer import Adapted, Adapter, adapted_layers, features
from minitrain.finetuning.methods import (
    ALL_LINEAR,
    EVERY_LINEAR,
    METHODS,
    BitFitMethod,
    BottleneckMethod,
    FullMethod,
    IA3Method,
    LayerMethod,
    LoRAMethod,
    Method,
    NormMethod,
    PrefixMethod,
    PromptMethod,
    fits,
)
from minitrain.finetuning.prompts.prefix import Prefix, add_prefix
from minitrain.finetuning.prompts.prompt import add_prompt
from minitrain.model.experts.grouped import Experts
from minitrain.model.hub.load import HUB_PARTS, hub_name
from minitrain.model.swap import check_called, exchange
from minitrain.model.transformer import Transformer

Model = TypeVar("Model", bound=nn.Module)
OTHER_NAMES = {part: (hub.rsplit(".", 1)[-1],) for part, hub in HUB_PARTS.items()}  # q: q_proj
OTHER_NAMES |= {theirs[0]: (ours,) for ours, theirs in OTHER_NAMES.items()}


def adapt(
    model: Model,
    method: str | Method = "lora",
    *,
    seed: int = 0,
    example: Any = None,
    **options: Any,
) -> Model:
    """Adds the method's adapter, freezes the rest, and returns the model.

    `method`: a name of METHODS with `options` of its dataclass, or one of these itself. `seed`
    draws what is random, alike on every rank. `example`: an input of the model, on which
    model/swap.py tries at once whether all adapters are reached, and else at the first forward.
    InputError where a target is no layer of the model, and nothing is changed.
    """
    method = find_method(method, options)
    if adaptation_of(model) is not None or adapted_layers(model):
        raise InputError(
            "this model is adapted already, or a part of it: merge_and_unload(model) or "
            "unload(model) first"
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
        _add_to_layers(model, method, generator, example)
    model.adaptation = method
    return model


def _add_to_layers(
    model: nn.Module, method: LayerMethod, generator: torch.Generator, example: Any
) -> None:
    found = find_layers(model, method.targets)
    whole = find_layers(model, method.modules_to_save) if method.modules_to_save else []
    if twice := {path for path, _ in found} & {path for path, _ in whole}:
        raise InputError(f"{min(twice)} is in targets and in modules_to_save: name it in one")
    _check_patterns(model, method)
    if isinstance(method, IA3Method) and method.inputs != IA3Method.inputs:
        for name in method.inputs:
            if not any(is_target(path, name) for path, _ in found):
                raise unknown_name("target with scaled inputs", name, method.targets)
    adapters = {path: make_adapter(layer, path, method, generator) for path, layer in found}
    adapters |= {path: TrainedModule(layer) for path, layer in whole}
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    layers = {
        path: (old := model.get_submodule(path), Adapted(old, adapter))
        for path, adapter in adapters.items()
    }
    try:
        exchange(model, layers, example)
    except Exception:
        for parameter in learning:
            parameter.requires_grad_(True)
        raise


def _check_patterns(model: nn.Module, method: Method) -> None:
    """A pattern that fits no layer would be passed over without a word."""
    if not isinstance(method, LoRAMethod):
        return
    names = [name for path, _ in model.named_modules() for name in (path, hub_name(path))]
    for pattern in {**method.rank_pattern, **method.alpha_pattern}:
        try:
            if any(fits(pattern, name) for name in names):
                continue
        except re.error as error:
            raise InputError(
                f"the pattern {pattern!r} is no regular expression: {error}"
            ) from error
        raise InputError(f"the pattern {pattern!r} fits no layer of this {type(model).__name__}")


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
    """Counts of trainable parameters and of all; shared ones count once.

    A layer in 4 bits counts its bytes as it stores them.
    """
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)


def find_layers(model: nn.Module, targets: tuple[str, ...]) -> list[tuple[str, nn.Module]]:
    """Path and layer of all whose path is a target or ends with one, in our names or the hub's.

    Each target must find some; of ALL_LINEAR, which are the default, a model of experts has fewer,
    and `experts` are what LoRA may have there besides. In another model than `Transformer` the
    default means what "all-linear" does: every linear layer but the head.
    """
    if targets == (EVERY_LINEAR,) or (targets == ALL_LINEAR and not isinstance(model, Transformer)):
        return _every_linear(model)
    named = [(path, m) for path, m in model.named_modules(remove_duplicate=False) if path]
    found: dict[nn.Module, str] = {}  # one may have several paths
    for target in targets:
        hits = [(path, module) for path, module in named if is_target(path, target)]
        if not hits and targets != ALL_LINEAR:
            raise unknown_name("layer", target, {path.rsplit(".", 1)[-1] for path, _ in named})
        for path, module in hits:
            found.setdefault(module, path)
    if not found:
        raise InputError(
            f"this {type(model).__name__} has no layers called {', '.join(targets)}: name its own "
            "with targets=(…)"
        )
    order = {id(module): place for place, (_, module) in reversed([*enumerate(named)])}
    return sorted(((p, m) for m, p in found.items()), key=lambda pair: order[id(pair[1])])


def is_target(path: str, target: str) -> bool:
    ends = tuple(f".{name}" for name in (target, *OTHER_NAMES.get(target, ())))
    return f".{path}".endswith(ends)


def _every_linear(model: nn.Module) -> list[tuple[str, nn.Module]]:
    get_head = getattr(model, "get_output_embeddings", lambda: getattr(model, "head", None))
    head = get_head()
    found = [
        (path, module)
        for path, module in model.named_modules()
        if path and module is not head and features(module) is not None
    ]
    if not found:
        raise InputError(
            f"this {type(model).__name__} has no linear layers inside: put a bare one into "
            "nn.Sequential(layer)"
        )
    return found


def check_rank(model: nn.Module, method: Method) -> None:
    """InputError where LoRA's rank is more than a matrix of one of its layers can have: what is
    beyond that costs, and can learn nothing more. Files may hold such (PiSSA's have twice its
    rank), so `adapt` does not ask."""
    if not isinstance(method, LoRAMethod):
        return
    for path, layer in find_layers(model, method.targets):
        rank = method.at(path, hub_name(path)).rank
        most = min(_matrix_sizes(layer), default=rank)
        if rank > most:
            raise InputError(
                f"rank {rank} is more than {path} can have, whose matrix is "
                f"{' x '.join(map(str, _matrix_sizes(layer)))}: use {most} or less, or targets "
                "without it"
            )


def _matrix_sizes(layer: nn.Module) -> tuple[int, ...]:
    """(O, I); of an embedding (V, D), of experts (D, F); () where it has no matrix."""
    if sizes := features(layer):
        return sizes
    weights = [p for p in layer.parameters(recurse=False) if p.ndim > 1]
    return tuple(weights[0].shape[-2:]) if weights else ()


def make_adapter(
    layer: nn.Module, path: str, method: Method, generator: torch.Generator
) -> Adapter:
    """The adapter for one layer; InputError where it is none that the method can adapt."""
    check_called(path, layer)
    if any(is_lazy(parameter) for parameter in layer.parameters()):
        raise InputError(f"{path} has no weight before its first input: run the model once")
    if isinstance(method, LoRAMethod):
        method = method.at(path, hub_name(path))
    if isinstance(method, NormMethod):
        if features(layer) or not list(layer.parameters(recurse=False)):
            raise InputError(f"{path} is no norm with weights: give targets such as ('mlp_norm',)")
        return TunedNorm(layer)
    if isinstance(method, BottleneckMethod) and method.parallel:
        return Parallel(
            layer, width_of(layer, path), method.bottleneck, generator, scale=method.scale
        )
    if isinstance(method, LoRAMethod) and isinstance(layer, nn.Embedding):
        if method.dora or method.pissa:
            raise InputError(f"{path} is an embedding: use lora or rslora there")
        if type(layer).forward is not nn.Embedding.forward and not hasattr(layer, "embed_scale"):
            raise InputError(
                f"{path} is a {type(layer).__name__}, which looks up in a way of its own: leave it "
                "out of targets, or name it in modules_to_save"
            )
        return LoRAEmbedding(layer, method.rank, method.scaling, generator)
    if isinstance(method, LoRAMethod) and isinstance(layer, Experts):
        if method.dora or method.pissa or method.dropout:
            raise InputError(
                f"{path} holds the matrices of all experts, beside which only lora and rslora "
                "learn, without dropout: use one of them there"
            )
        return LoRAExperts(layer, method.rank, method.scaling, generator)
    if features(layer) is None:
        raise InputError(
            f"{path} is a {type(layer).__name__} and no linear layer: give targets with "
            "in_features and out_features, such as ('q', 'v')"
        )
    if isinstance(method, LoRAMethod):
        kind = DoRA if method.dora else PiSSA if method.pissa else LoRA
        return kind(layer, method.rank, method.scaling, method.dropout, generator)
    if isinstance(method, IA3Method):
        return IA3(layer, of_input=any(is_target(path, name) for name in method.inputs))
    if isinstance(method, BottleneckMethod):
        return Houlsby(layer, features(layer)[0], method.bottleneck, generator)
    assert isinstance(method, BitFitMethod), f"no adapter for {method}"
    return BitFit(layer)


def width_of(layer: nn.Module, path: str) -> int:
    """The input width of a sublayer: that of its first linear layer."""
    for module in layer.modules():
        if sizes := features(module):
            return sizes[1]
    raise InputError(f"{path} has no linear layer: give targets such as ('mlp', 'attention')")


def _check_transformer(model: nn.Module, method: Method) -> None:
    if not isinstance(model, Transformer):
        raise InputError(
            f"{type(method).__name__} uses slots of minitrain's Transformer, and this is a "
            f"{type(model).__name__}: read it with load_pretrained, or use lora"
        )
