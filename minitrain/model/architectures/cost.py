"""The cost of an architecture in closed form: weights, state, FLOPs; of a layer, and of a hybrid.

             weights                           state after t tokens   FLOPs of mixing, a token
    A        2·D·C·(H + K)                     2·K·C·t                4·H·C·t
    W        the same                          2·K·C·min(t, W - 1)    4·H·C·min(t, W)
    X        D·(H·(2·C+S) + R + S) + 2·R·H·C   (R + S)·t              2·H·(2·C + S)·t, or in
                                                                      decoding 2·H·(2·R + S)·t
    L M D    4, 3 and more projections         constant               constant

With n tokens in a chunk (1 in decoding), N numbers of a key and P of a value in each of H heads:

    L, M   H·(2·n·(N + P) + 4·N·P)            D   H·(2·n·(2·N + P) + 6·N·P)

Only matmuls are counted, and attention in full although a causal mask hides half, as in
measure/flops.py; short convolutions, gates, and D's triangular solve (H·n·(N + P)) are not.
Published: DeepSeek-V3 caches 70 kB a token in BF16, Llama 3.1 405B 516 kB. Lab: e14.
Shapes: D width  H heads  K key/value heads  C head size  R latent  S rotary size  W window.
"""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.model.architectures.hybrid import HybridConfig


@dataclass(frozen=True)
class LayerCost:
    """Of the tokens' mixing in one layer; the MLP is the same in all."""

    weights: int  # in matmuls
    state: int  # numbers, after `tokens`
    flops: int  # forward, of the last of `tokens`, projections included


def layer_cost(config: HybridConfig, kind: str, tokens: int, decoding: bool = False) -> LayerCost:
    """Of a layer of this kind that has read `tokens` tokens. decoding: one token at a time."""
    width, heads, size = config.hidden_size, config.heads, config.head_size
    inner, chunk = heads * size, 1 if decoding else config.chunk
    if kind in "AW":
        seen = min(tokens, config.window) if kind == "W" else tokens
        weights = 2 * width * size * (heads + config.kv_heads)
        kept = min(tokens, config.window - 1) if kind == "W" else tokens
        recent = 3 * size * (heads + 2 * config.kv_heads) * config.attention_convolution
        state = 2 * config.kv_heads * size * kept + recent
        return LayerCost(weights, state, 2 * weights + 4 * inner * seen)
    if kind == "X":
        return latent_cost(config, tokens, decoding)
    if kind == "L":
        flops = heads * (2 * chunk * (2 * size + 1) + 4 * size * (size + 1))
        weights = 4 * width * inner
        return LayerCost(weights, inner * (size + 1), 2 * weights + flops)
    if kind == "M":
        keys, recent = config.state_size, 3 * (inner + 2 * config.state_size)
        flops = 2 * chunk * keys + heads * (2 * chunk * size + 4 * keys * size)  # keys are shared
        weights = width * (3 * inner + 2 * keys + heads)
        return LayerCost(weights, inner * keys + recent, 2 * weights + flops)
    keys, recent = config.key_size, 3 * heads * (2 * config.key_size + size)
    flops = heads * (2 * chunk * (2 * keys + size) + 6 * keys * size)
    weights = width * heads * (2 * keys + 3 * size + 2)
    return LayerCost(weights, inner * keys + recent, 2 * weights + flops)


def latent_cost(config: HybridConfig, tokens: int, decoding: bool) -> LayerCost:
    """Expanded in training, where each token's keys and values are made once; absorbed after."""
    width, heads, size = config.hidden_size, config.heads, config.head_size
    latent, rotary, queries = config.latent_size, config.rotary_size, config.query_latent_size
    head = heads * (size + rotary)
    ask = width * queries + queries * head if queries else width * head
    weights = ask + width * (latent + rotary) + (2 * latent + width) * heads * size
    scores = 2 * latent + rotary if decoding else 2 * size + rotary
    return LayerCost(weights, (latent + rotary) * tokens, 2 * weights + 2 * heads * scores * tokens)


def state_numbers(config: HybridConfig, tokens: int) -> int:
    """Numbers that all layers hold for one sequence of `tokens` tokens."""
    return sum(layer_cost(config, kind, tokens).state for kind in config.kinds)


def state_bytes(config: HybridConfig, tokens: int, bytes_each: int = 2) -> int:
    """The same in bytes: 2 a number in BF16."""
    return bytes_each * state_numbers(config, tokens)


def forward_flops(config: HybridConfig, tokens: int, decoding: bool = False) -> int:
    """FLOPs of the last of `tokens` tokens through all layers and the head."""
    mlp = 2 * 3 * config.hidden_size * config.ffn_size
    mixing = (layer_cost(config, kind, tokens, decoding).flops for kind in config.kinds)
    head = 2 * config.vocab_size * config.hidden_size
    return sum(mixing) + config.layers * mlp + head
