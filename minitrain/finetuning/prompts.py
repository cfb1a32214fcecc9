r"""Learned tokens: keys and values before those of every layer (prefix), or vectors before the
embeddings (prompt).

    prefix    attention(q, [prefix keys; k], [prefix values; v])    in every layer
    prompt    x = [P; embed(tokens)]                                n + T tokens through all layers

    mask, prefix   (T, n+T)      0 0 | \ -          0 reads, - does not, \ causal
                                 0 0 | 0 \
    mask, prompt   (n+T, n+T)    the same, and above it the rows of the n tokens themselves

The sequence's tokens shift by n positions. Every document packed into a row attends to the learned
tokens, and so does a token whose window does not reach them.

Prefix: keys are learned as attention reads them, after RoPE. Li and Liang found them hard to train
directly and generated them from n vectors by one small MLP, which `reparametrised` adds and
`drop_mlp` removes after training; P-tuning v2 trains them directly. A prefix of zeros still has an
effect: its keys take their share of the softmax.
Trained: n·L·2·K·C numbers, or the MLP's; each token attends to n more keys.
Prompt: initialized with the embeddings of tokens drawn from the vocabulary, which learns faster
than noise; its n outputs are dropped before the head, so that logits and targets keep their shape.
Trained: n·D numbers, and every sequence has n more tokens. Neither can be merged into weights.
Papers: Li and Liang, arXiv 2101.00190; Liu et al., 2110.07602; Lester et al., 2104.08691.
Shapes: n learned tokens  L layers  K key/value heads  C head size  M width of the MLP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.finetuning.layer import Adapted, Adapter, place_of
from minitrain.model.attention.grouped_query import Kernel, causal_mask
from minitrain.model.rope import Rotation, document_positions
from minitrain.model.transformer import Transformer

STD = 0.02


class Prefix(nn.Module):
    """All layers' keys and values: `table` (n, L·2·K·C), or an MLP that makes it."""

    def __init__(
        self,
        model: Transformer,
        count: int,
        width: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """`width` M of the MLP; None: no MLP."""
        super().__init__()
        config, place = model.config, place_of(model.embed)
        self.layers, self.heads = config.layers, config.kv_heads
        self.enabled, size = True, config.kv_heads * config.head_size
        made = config.layers * 2 * size

        def drawn(std: float, *shape: int) -> nn.Parameter:
            numbers = torch.randn(shape, generator=generator, dtype=place["dtype"])
            return nn.Parameter((numbers * std).to(**place))

        if width is None:
            self.table = drawn(STD, count, made)
            return
        self.vectors = drawn(1.0, count, size)  # (n, K·C)
        self.inner = drawn(size**-0.5, width, size)
        self.inner_bias = nn.Parameter(torch.zeros(width, **place))
        self.outer = drawn(STD / math.sqrt(width), made, width)
        self.outer_bias = nn.Parameter(torch.zeros(made, **place))

    @property
    def reparametrised(self) -> bool:
        return "table" not in self._parameters

    @property
    def count(self) -> int:
        return len(self.vectors if self.reparametrised else self.table)

    def rows(self, features: slice = slice(None)) -> Tensor:
        """The selected features of the table, (n, L·2·K·C)."""
        if not self.reparametrised:
            return self.table[:, features]
        inside = torch.tanh(F.linear(self.vectors, self.inner, self.inner_bias))  # (n, M)
        return F.linear(inside, self.outer[features], self.outer_bias[features])

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values (K, n, C) of one layer."""
        size = (self.outer if self.reparametrised else self.table.T).shape[0] // self.layers
        rows = self.rows(slice(layer * size, (layer + 1) * size))  # (n, 2·K·C)
        return rearrange(rows, "n (two h c) -> two h n c", two=2, h=self.heads).unbind()

    @torch.no_grad()
    def drop_mlp(self) -> None:
        """Keeps the MLP's output as the table, and drops the MLP; an earlier optimizer becomes
        useless."""
        if self.reparametrised:
            table = nn.Parameter(self.rows().clone())
            for name in ("vectors", "inner", "inner_bias", "outer", "outer_bias"):
                delattr(self, name)
            self.table = table


class PrefixKernel:
    """A layer's attention kernel, given the prefix's keys and values before the sequence's."""

    def __init__(self, prefix: Prefix, layer: int, kernel: Kernel) -> None:
        self.prefix, self.layer, self.kernel = prefix, layer, kernel

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """q (B, H, T, C), k and v (B, K, T, C), mask (..., T, n+T) -> (B, H, T, C)."""
        if not self.prefix.enabled:
            return self.kernel(q, k, v, mask)
        own = self.prefix.of_layer(self.layer)
        keys, values = (z.to(k.dtype).expand(len(k), -1, -1, -1) for z in own)
        k, v = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)  # (B, K, n+T, C)
        return self.kernel(q, k, v, mask)


def add_prefix(model: Transformer, prefix: Prefix) -> None:
    """Puts the prefix before every layer, through the Transformer's slots, and keeps it as
    `model.soft_prompt`. `prefix`: any object with `of_layer`, `count` and `enabled`."""
    for layer, block in enumerate(model.blocks):
        block.attention.kernel = PrefixKernel(prefix, layer, block.attention.kernel)
    model.soft_prompt = prefix
    model.look_around = Shifted(model.look_around, prefix.count, in_stream=False, switch=prefix)


class Prompt(Adapter):
    """Over the embedding."""

    peft_names = {"vectors": "prompt_embeddings"}  # noqa: RUF012

    def __init__(
        self, base: nn.Embedding, count: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        drawn = torch.randint(len(base.weight), (count,), generator=generator)
        rows = base.weight.detach()[drawn.to(base.weight.device)]
        self.vectors = nn.Parameter(rows.to(**place_of(base)))  # (n, D)

    def forward(self, base: nn.Embedding, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, n+T, D)."""
        x = base(tokens)
        prompt = self.vectors.to(x.dtype).expand(len(x), -1, -1)  # (B, n, D)
        return torch.cat((prompt, x), dim=1)


class Cut(Adapter):
    """Over the last norm: drops the learned tokens' outputs."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, base: nn.Module, x: Tensor) -> Tensor:
        """x (B, n+T, D) -> (B, T, D)."""
        return base(x[:, self.count :])


def add_prompt(model: Transformer, count: int, generator: torch.Generator | None = None) -> None:
    embed = Adapted(model.embed, Prompt(model.embed, count, generator))
    model.embed, model.norm = embed, Adapted(model.norm, Cut(count))
    model.look_around = Shifted(model.look_around, count, in_stream=True, switch=embed)


# ---- positions and mask of a sequence behind n learned tokens ----


class Switch(Protocol):
    enabled: bool


class Shifted:
    """A model's slot `look_around`, which makes positions and mask, extended by n learned tokens.

    inner: the previous slot; in_stream: the tokens are in x too (a prompt), not only among the keys
    (a prefix). They are present while `switch.enabled` is true.
    """

    def __init__(
        self,
        inner: Callable[..., tuple[Rotation, Any]],
        count: int,
        in_stream: bool,
        switch: Switch,
    ) -> None:
        self.inner, self.count, self.in_stream = inner, count, in_stream
        self.switch = switch

    def __call__(
        self, x: Tensor, documents: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Rotation, Tensor]:
        """x (B, T, D), or (B, n+T, D) where they are in the stream; documents, positions (B, T)."""
        if not self.switch.enabled:
            return self.inner(x, documents, positions)
        n = self.count
        own = x[:, n:] if self.in_stream else x  # (B, T, D)
        if positions is None and documents is not None:
            positions = document_positions(documents)  # (B, T)
        elif positions is None:
            positions = torch.arange(own.shape[1], device=x.device)  # (T,)
        _, mask = self.inner(own, documents, positions)
        mask = _with_columns(mask, own, n)  # (..., T, n+T)
        places = positions + n
        if self.in_stream:
            mask = _with_rows(mask, n)  # (..., n+T, n+T)
            first = torch.arange(n, device=x.device).expand(*places.shape[:-1], n)
            places = torch.cat((first, places), dim=-1)  # (n+T,) or (B, n+T)
        turns, _ = self.inner(own, None, places)  # RoPE of shifted positions; no mask
        return turns, mask


def _with_columns(mask: Any, x: Tensor, count: int) -> Tensor:
    """mask (..., T, T), None for causal -> (..., T, n+T), the first n columns visible."""
    if mask is None:
        mask = causal_mask(x[:, None])  # (T, T)
    if not isinstance(mask, Tensor):
        raise InputError(
            f"learned tokens need a mask of numbers, and this attention's is {type(mask).__name__}:"
            " exchange_attention(model, attention, attention_mask) before adapt(...)"
        )
    return F.pad(mask, (count, 0))


def _with_rows(mask: Tensor, count: int) -> Tensor:
    """mask (..., T, n+T) -> (..., n+T, n+T): the learned tokens read one another, causally."""
    own = mask.new_full((count, mask.shape[-1]), -torch.inf).triu(1)  # (n, n+T)
    return torch.cat((own.expand(*mask.shape[:-2], *own.shape), mask), dim=-2)
