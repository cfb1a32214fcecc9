"""The forward pass over new tokens only: earlier ones are read from a cache.

A token's keys and values depend on nothing after it, so they are computed once, rotated by RoPE,
and cached. After t tokens the next one then costs one token's matmuls and 4·t·H·C FLOPs of
attention a layer, whereas `sampling.generate` recomputes all t tokens.

    reader = cache.reader(...)              positions of the new tokens, and how they attend
    hidden = forward_new(model, tokens, reader)
    logits = model.head(hidden)             only for the rows needed: the head is the largest
                                            matrix of a small model

Every cache (in `cache`) provides such a reader, and this is the one forward pass for all of
them. Shapes: B batch  T new tokens  D width  H query heads  K key/value heads  C head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from einops import rearrange
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.architectures.hybrid import Hybrid
from minitrain.model.attention.grouped_query import Attention
from minitrain.model.rope import Rotation, rotate, rotation
from minitrain.model.swap import Calls
from minitrain.model.transformer import Transformer

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Reader(Protocol):
    """One pass over a cache. `positions` (B, T) int64: positions of the new tokens."""

    positions: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (B, H, T, C), k and v (B, K, T, C), rotated by RoPE -> (B, H, T, C).

        Stores k and v in that layer of the cache, then attends to all that each query may see.
        """


@torch.no_grad()
def forward_new(model: Transformer, tokens: Tensor, reader: Reader) -> Tensor:
    """tokens (B, T) int64 -> hidden (B, T, D), as `model.head` takes it. No gradient."""
    check_servable(model)
    x = model.embed(tokens)  # (B, T, D)
    turns = rotation(model.config, reader.positions, x.dtype)
    for layer, block in enumerate(model.blocks):
        attend = partial(reader.attend, layer)
        x = x + through(block.attention, block.attention_norm(x), turns, attend)
        x = x + block.mlp(block.mlp_norm(x))
    return model.norm(x)


def through(attention: Attention, x: Tensor, turns: Rotation, attend: Attend) -> Tensor:
    """x (B, T, D) -> (B, T, D): a layer's attention, with `attend` as its kernel."""
    q, k, v = (attention.split(z(x)) for z in (attention.q, attention.k, attention.v))
    q, k = rotate(q, turns), rotate(k, turns)  # (B, T, H, C), (B, T, K, C)
    q, k, v = (rearrange(z, "b t h c -> b h t c") for z in (q, k, v))
    return attention.o(rearrange(attend(q, k, v), "b h t c -> b t (h c)"))


def near(distance: Tensor, window: int | None) -> Tensor:
    """Positions from key to query -> bool: neither ahead nor outside the window."""
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def check_servable(model: Transformer) -> None:
    """InputError for another package's model, and for one whose forward pass computes more than
    this one."""
    check_own(model)
    if isinstance(model, Hybrid):
        raise InputError(
            f"layers {model.config.kinds} carry their own states, not a cache of keys and values: "
            "use model.read, or greedy of minitrain.model.architectures.hybrid"
        )
    if not isinstance(model.look_around, partial):
        raise InputError(
            "learned tokens stand before this model's text, and a cache would lose them: "
            "unload(model), or use sampling.generate"
        )
    if model.config.capacity is not None:
        raise InputError(
            f"experts with capacity {model.config.capacity} drop tokens depending on the "
            "rest of the batch: serve the model with capacity None"
        )
    check_uncalled("the model", model)
    for number, block in enumerate(model.blocks):
        check_uncalled(f"blocks.{number}", block)
        check_uncalled(f"blocks.{number}.attention", block.attention)


def check_own(model: object) -> None:
    """InputError for anything but a Transformer of this package; says how to convert it."""
    if isinstance(model, Transformer):
        return
    name, package = type(model).__name__, type(model).__module__.partition(".")[0]
    if isinstance(model, nn.Module) and any(isinstance(m, Transformer) for m in model.children()):
        raise InputError(f"{name} wraps the model: give the one inside of it")
    if package in ("transformers", "peft"):
        first = "model = model.merge_and_unload(), " if package == "peft" else ""
        raise InputError(
            f"{name} of {package} is not a model of this package; convert it: {first}"
            "model.save_pretrained(FOLDER), then model, text = load_pretrained(FOLDER) from "
            "minitrain.model.hub.load"
        )
    raise InputError(
        f"{name} is not a Transformer of this package: give what build(config) of "
        "minitrain.model.transformer or load_pretrained(FOLDER) of minitrain.model.hub.load makes"
    )


def check_uncalled(path: str, module: nn.Module) -> None:
    """InputError for hooks or a foreign forward on a module that is never called here, because
    `forward_new` computes it from its parts."""
    module = getattr(module, "_orig_mod", module)  # from torch.compile
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    if any(not isinstance(getattr(hook, "__self__", None), Calls) for hook in hooks):
        raise InputError(
            f"{path} has a forward hook, which a pass with a cache would not call: put it on a "
            "layer inside, such as blocks.0.attention.o or blocks.0.mlp, or use sampling.generate"
        )
    ours = __name__.partition(".")[0] + "."  # such as TensorAttention's, which computes the same
    if "forward" in vars(module) or not type(module).forward.__module__.startswith(ours):
        raise InputError(
            f"{path} has a forward of its own, which a pass with a cache would not call: use "
            "sampling.generate"
        )
