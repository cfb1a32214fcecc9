"""`adapt(model, "lora", rank=8)`: a model trained by one method, all else frozen.

    model = adapt(model, "lora", rank=8, targets=("q", "v"))
    model = adapt(model, "dora", rank=16)          all linear layers of all blocks
    model = adapt(model, "lora", targets="all-linear", modules_to_save="score")
    model = adapt(model, "prefix", tokens=20)
    trained, total = trainable_parameters(model)
    optimizer = AdamW(adapter_groups(model, 1e-3))

The model is changed in place and returned; its original parameters are frozen, so that the
optimizer holds only the adapter's state. lora, dora, … only need layers found by name, so they fit
any model. prefix and prompt use the slots of a `Transformer`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import nn

from minitrain.errors import InputError, unknown_name
from minitrain.finetuning.layer import adapted_layers, features, find_layers
from minitrain.finetuning.methods import METHODS, LoRAMethod, Method
from minitrain.optimizers.groups import parameter_groups

Model = TypeVar("Model", bound=nn.Module)
FAST = ("lora_B", "lora_embedding_B")


def adapt(
    model: Model,
    method: str | Method = "lora",
    *,
    seed: int = 0,
    example: Any = None,
    **options: Any,
) -> Model:
    """Adds the method's adapter, freezes the rest, and returns the model.

    `method`: a name in METHODS with `options` of its dataclass, or an instance of one. `seed` draws
    the same random numbers on every rank. `example`: a model input with which model/swap.py checks
    now, rather than at the first forward, that all adapters are reached. InputError, with nothing
    changed, where a target is not a layer of the model.
    """
    method = find_method(method, options)
    if adaptation_of(model) is not None or adapted_layers(model):
        raise InputError(
            "this model is adapted already, or a part of it: merge_and_unload(model) or "
            "unload(model) first"
        )
    method.add_to(model, torch.Generator().manual_seed(seed), example)
    model.adaptation = method
    return model


def find_method(method: str | Method, options: dict[str, Any]) -> Method:
    if isinstance(method, Method):
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
    """The method that adapted the model; None if it has not been adapted."""
    return getattr(model, "adaptation", None)


def trainable_parameters(model: nn.Module) -> tuple[int, int]:
    """Counts of trainable parameters and of all; shared ones count once.

    A 4-bit layer counts its stored bytes.
    """
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)


def check_rank(model: nn.Module, method: Method) -> None:
    """InputError where LoRA's rank exceeds that of a layer's own matrix: the excess costs, and adds
    nothing. `adapt` does not check: files may hold such adapters (PiSSA's have twice its rank)."""
    if not isinstance(method, LoRAMethod):
        return
    for path, layer in find_layers(model, method.targets):
        rank = method.at(path).rank
        weights = (p.shape[-2:] for p in layer.parameters(recurse=False) if p.ndim > 1)
        sizes = features(layer) or next(weights, (rank,))
        if rank > min(sizes):
            raise InputError(
                f"rank {rank} is more than {path} can have, whose matrix is "
                f"{' x '.join(map(str, sizes))}: use {min(sizes)} or less, or targets without it"
            )


def adapter_groups(model: nn.Module, lr: float, weight_decay: float = 0.0) -> list[dict]:
    """Parameter groups of all trainable parameters: `AdamW(adapter_groups(model, 1e-3))`.

    LoRA+ ("lora+", or an `lr_ratio`) has B learn faster than A, since in a wide layer A's entries
    must move less for the same effect: B's rate is ratio·lr. Each group also has an `lr_scale`, by
    which a schedule multiplies the rate it sets at every step. Weight decay applies to matrices
    only. Paper: Hayou et al., arXiv 2402.12354, which takes a ratio of about 16.
    """
    method = adaptation_of(model)
    if method is None:
        raise InputError("this model has no adapter: adapt(model, ...) or load_adapter(...) first")
    ratio = getattr(method, "lr_ratio", 1.0)
    fast = {id(p) for name, p in model.named_parameters() if ratio != 1 and name.endswith(FAST)}
    groups = []
    for group in parameter_groups(model, weight_decay):
        for scale, wanted in ((1.0, False), (ratio, True)):
            own = [p for p in group["params"] if (id(p) in fast) == wanted]
            if own:
                groups.append({**group, "params": own, "lr": lr * scale, "lr_scale": scale})
    return groups
