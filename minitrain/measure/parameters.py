"""Parameter counts of a decoder, from its shape alone: all, and those that multiply a
token.

With D the width, H query heads of size C, K key/value heads, F the MLP's width, L layers and V the
vocabulary, a Llama has

    parameters = V·D                 the embedding
               + L·(2·D·H·C          attention: q and o
                  + 2·D·K·C          attention: k and v
                  + 3·D·F            the MLP: gate, up, down
                  + 2·D)             two norms
               + D + V·D             the last norm; the head, unless it is tied to the embedding

A GPT has no gate, so 2·D·F; biases everywhere, norms of two vectors, learned positions, a tied
head. With E experts of width F' instead of the MLP, S of them shared, 3·D·F becomes (E + S)·3·D·F'
plus the router's D·E; a token uses n + S of them, and only those are *active*. Norms, biases and
the embedding's lookup multiply nothing; the head does, tied or not. Labs: e01, e02d, e10.
"""

from __future__ import annotations

from typing import Protocol


class Shape(Protocol):
    """The fields read from a model's configuration: `model.config.ModelConfig`,
    `planning.run.Model`."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn_size: int
    window: int | None
    tied: bool
    gated: bool
    qkv_bias: bool
    experts: int
    experts_per_token: int
    expert_ffn_size: int
    shared_experts: int
    dense_layers: int  # in a mixture of experts: the first few, with one MLP of `ffn_size`


def parameter_count(shape: Shape, positions: int = 0) -> int:
    """All parameters; a tied matrix counts once. `positions`: a GPT's maximum sequence length."""
    dense, mixture = layers_of(shape)
    layers = dense * layer_weights(shape, False)
    if mixture:
        layers += mixture * (layer_weights(shape, True) + expert_weights(shape))
    last = shape.hidden_size if shape.gated else 2 * shape.hidden_size  # the last norm
    head = 0 if shape.tied else head_weights(shape)
    return embedding_weights(shape, positions) + layers + last + head


def active_parameter_count(shape: Shape) -> int:
    """The parameters that one token uses: all, except that only its own experts count."""
    idle = (shape.experts - shape.experts_per_token) * mlp_weights(shape, shape.expert_ffn_size)
    return parameter_count(shape) - layers_of(shape)[1] * idle


def matmul_parameters(shape: Shape) -> int:
    """P: the weights that multiply each token, including the head."""
    dense, mixture = layers_of(shape)
    layers = dense * layer_matmuls(shape, False)
    if mixture:
        layers += mixture * layer_matmuls(shape, True)
    return layers + head_weights(shape)


def layers_of(shape: Shape) -> tuple[int, int]:
    """The number of layers with one MLP, and of those with experts."""
    dense = shape.dense_layers if shape.experts else shape.layers
    return dense, shape.layers - dense


def layer_matmuls(shape: Shape, mixture: bool) -> int:
    """Weights of one layer that multiply a token: of its experts the chosen and the shared."""
    if not mixture:
        return attention_weights(shape) + mlp_weights(shape, shape.ffn_size)
    passed = shape.experts_per_token + shape.shared_experts
    experts = passed * mlp_weights(shape, shape.expert_ffn_size)
    return attention_weights(shape) + experts + router_weights(shape)


def layer_weights(shape: Shape, mixture: bool) -> int:
    """One layer without its routed experts: attention, MLP or shared experts, norms, biases."""
    if mixture:
        shared = shape.shared_experts * mlp_weights(shape, shape.expert_ffn_size)
        mlp = shared + router_weights(shape)
    else:
        mlp = mlp_weights(shape, shape.ffn_size)
    return attention_weights(shape) + mlp + small_weights(shape)


def attention_weights(shape: Shape) -> int:
    return 2 * shape.hidden_size * shape.head_size * (shape.heads + shape.kv_heads)


def mlp_weights(shape: Shape, ffn_size: int) -> int:
    return (3 if shape.gated else 2) * shape.hidden_size * ffn_size


def router_weights(shape: Shape) -> int:
    return shape.hidden_size * shape.experts


def expert_weights(shape: Shape) -> int:
    """All routed experts of one layer, which expert parallelism distributes."""
    return shape.experts * mlp_weights(shape, shape.expert_ffn_size)


def small_weights(shape: Shape) -> int:
    """Norms and biases: Llama's 2·D, plus Qwen2's (H + 2·K)·C; GPT's 13·D if F = 4·D."""
    qkv_biases = (shape.heads + 2 * shape.kv_heads) * shape.head_size
    if shape.gated:
        return 2 * shape.hidden_size + (qkv_biases if shape.qkv_bias else 0)
    return 4 * shape.hidden_size + qkv_biases + 2 * shape.hidden_size + shape.ffn_size


def embedding_weights(shape: Shape, positions: int = 0) -> int:
    """The table, and a GPT's learned positions."""
    return (shape.vocab_size + (0 if shape.gated else positions)) * shape.hidden_size


def head_weights(shape: Shape) -> int:
    return shape.vocab_size * shape.hidden_size
