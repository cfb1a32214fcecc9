"""A Transformer whose layers mix tokens in different ways, chosen by a pattern such as "DDDA".

    A  attention            the cache grows with every token     2·K·C numbers a token
    W  windowed attention   the last W tokens only               2·K·C·W
    X  latent attention     one latent a token                   R + S a token
    L  linear attention     a sum                                H·C·(C + 1)
    M  Mamba-2              a fading sum                         H·N·C
    D  gated DeltaNet       a sum with overwriting               H·Ck·C

A state of fixed size forgets: it cannot repeat a long list. A few layers of attention bring exact
recall back, and the cache shrinks with their number: 1 in 4 in Qwen3-Next and Kimi Linear, 1 in 8
in Jamba and MiniMax-01; Gemma 3 has 5 windowed layers to 1. Blocks, norms, MLPs and training loop
are the Transformer's own. Papers: Waleffe et al., arXiv 2406.07887 (Mamba-2-Hybrid); Lieber et al.,
2403.19887 (Jamba). Lab: e14.
Shapes: B batch  T new tokens  D width  H heads  K key/value heads  C head size  W window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.errors import InputError, check_whole, unknown_name
from minitrain.model.architectures.delta import GatedDeltaNet
from minitrain.model.architectures.latent import LatentAttention, readable
from minitrain.model.architectures.linear_attention import LinearAttention
from minitrain.model.architectures.mixer import (
    Around,
    Mixer,
    ShortConvolution,
    State,
    heads_first,
    heads_last,
)
from minitrain.model.architectures.ssd import Mamba2
from minitrain.model.config import ModelConfig
from minitrain.model.rope import document_positions, rotate, rotation
from minitrain.model.transformer import Transformer, initialise


@dataclass(frozen=True)
class HybridConfig(ModelConfig):
    """`pattern` has a letter a layer, or is repeated: "DDDA" in 8 layers comes twice."""

    pattern: str = "A"
    chunk: int = 32  # tokens, in L, M and D
    state_size: int = 64  # N, in M
    key_size: int | None = None  # Ck, in D; defaults to head_size
    latent_size: int = 64  # R, in X
    rotary_size: int = 16  # S, in X
    query_latent_size: int | None = None  # in X; None: queries straight from the stream
    attention_convolution: bool = False  # in A and W, as M and D have one

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_size is None:
            object.__setattr__(self, "key_size", self.head_size)
        for name in ("chunk", "state_size", "key_size", "latent_size", "rotary_size"):
            check_whole(name, getattr(self, name))
        for kind in self.pattern:
            if kind not in KINDS:
                raise unknown_name("kind of layer", kind, KINDS)
        if not self.pattern or self.layers % len(self.pattern):
            raise InputError(
                f"the pattern {self.pattern!r} does not repeat evenly in {self.layers} layers: "
                "give a letter for each layer, or a part that divides them"
            )
        if "W" in self.pattern and self.window is None:
            raise InputError('a layer "W" needs a window: give window=64, or another number')

    @property
    def kinds(self) -> str:
        """A letter for each layer."""
        return self.pattern * (self.layers // len(self.pattern))


def hybrid_config(base: ModelConfig, pattern: str, **changes: object) -> HybridConfig:
    """`hybrid_config(preset("1M"), "DDDA", key_size=16)`."""
    same = {field.name: getattr(base, field.name) for field in fields(base)}
    return HybridConfig(**{**same, "pattern": pattern, **changes})


class CachedAttention(Mixer):
    """The package's attention, with or without a window, that carries its keys and values along.

    Appending copies the cache for each token; inference/cache has those that do not.
    """

    def __init__(self, config: HybridConfig, window: int | None = None):
        super().__init__()
        heads = config.heads, config.kv_heads, config.kv_heads
        self.config, self.window, self.heads = config, window, heads
        sizes = [n * config.head_size for n in heads]
        self.q, self.k, self.v = (
            nn.Linear(config.hidden_size, size, bias=config.qkv_bias) for size in sizes
        )
        self.convolution = ShortConvolution(sum(sizes)) if config.attention_convolution else None
        self.sizes = sizes
        self.o = nn.Linear(sizes[0], config.hidden_size, bias=False)

    def reset_parameters(self) -> None:
        if self.convolution is not None:
            self.convolution.reset_parameters()

    def read(
        self, x: Tensor, around: Around, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        turns = rotation(self.config, around.positions, x.dtype)
        qkv, recent = torch.cat([z(x) for z in (self.q, self.k, self.v)], dim=-1), ()
        if self.convolution is not None:
            qkv, *recent = self.convolution.read(qkv, around, state and state[2])
        split = zip(qkv.split(self.sizes, dim=-1), self.heads)
        q, k, v = (heads_first(z, heads) for z, heads in split)
        q, k = (rotate(z.transpose(1, 2), turns).transpose(1, 2) for z in (q, k))
        if state is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(state, (k, v)))
        mask = readable(x, k.shape[2], around, self.window)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
        )
        if self.window is not None:  # the next token reads itself and window - 1 before it
            kept = slice(max(0, k.shape[2] - self.window + 1), None)
            k, v = k[:, :, kept], v[:, :, kept]
        return self.o(heads_last(out)), (k, v, *recent)


def windowed(config: HybridConfig) -> CachedAttention:
    return CachedAttention(config, config.window)


KINDS = {
    "A": CachedAttention,
    "W": windowed,
    "X": LatentAttention,
    "L": LinearAttention,
    "M": Mamba2,
    "D": GatedDeltaNet,
}


class Hybrid(Transformer):
    """Trains as every Transformer does; `read` continues a sequence from its layers' states."""

    config: HybridConfig

    def __init__(self, config: HybridConfig):
        super().__init__(config)
        for block, kind in zip(self.blocks, config.kinds):
            block.attention = KINDS[kind](config)
        self.look_around = around_of

    def read(
        self, tokens: Tensor, states: Sequence[State] | None = None, start: int = 0
    ) -> tuple[Tensor, list[State]]:
        """tokens (B, T) int64, at positions from `start` on -> hidden (B, T, D), as the head takes
        it, and each layer's state after them."""
        around = Around(torch.arange(start, start + tokens.shape[1], device=tokens.device))
        x, after = self.embed(tokens), []
        for block, state in zip(self.blocks, states or [None] * len(self.blocks)):
            mixed, state = block.attention.read(block.attention_norm(x), around, state)
            x = x + mixed
            x = x + block.mlp(block.mlp_norm(x))
            after.append(state)
        return self.norm(x), after


def around_of(
    x: Tensor, documents: Tensor | None = None, positions: Tensor | None = None
) -> tuple[Around, None]:
    """As Transformer.look_around: every layer makes its own mask, or none."""
    if positions is None and documents is not None:
        positions = document_positions(documents)
    elif positions is None:
        positions = torch.arange(x.shape[1], device=x.device)
    return Around(positions, documents), None


def build_hybrid(config: HybridConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> Hybrid:
    """A new model, its weights drawn as every Transformer's of this package."""
    model = Hybrid(config)
    initialise(model, torch.Generator().manual_seed(seed))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        for block in model.blocks:
            block.attention.reset_parameters()
    return model.to(dtype)


def greedy(model: Hybrid, tokens: Tensor, wanted: int) -> Iterator[Tensor]:
    """tokens (B, T) -> `wanted` times the likeliest next token (B,), from the states alone."""
    states, start = None, 0
    for _ in range(wanted):
        with torch.no_grad():
            hidden, states = model.read(tokens, states, start)
        start += tokens.shape[1]
        tokens = model.head(hidden[:, -1:]).argmax(dim=-1)  # (B, 1)
        yield tokens[:, 0]


def held_bytes(states: Sequence[State]) -> int:
    """Bytes of all layers' states."""
    tensors = [t for s in states for t in (s if isinstance(s, tuple) else (s,)) if t is not None]
    return sum(t.numel() * t.element_size() for t in tensors)
