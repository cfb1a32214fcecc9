"""The bytes that tensor parallelism sends, in closed form: a rank, a pass, a layer.

With S = B·T·D numbers of w bytes, and for one rank of N:

                    forward                        backward
    a layer         2 all-reduces of S             2 all-reduces of S            8(N-1)/N·S·w in all
      sequence      2 all-gathers, 2 reduce-       2 reduce-scatters, 4 all-
                    scatters                       gathers                      10(N-1)/N·S·w in all
      shared k, v                                  1 all-reduce of 2·C·D a head, over its holders
    embedding       1 all-reduce (sequence: 1 reduce-scatter; backward 1 all-gather)
    head                                           1 all-reduce (sequence: 1 all-gather; backward
                                                   1 reduce-scatter, 1 all-gather)
    loss            1 all-gather of N·2·B·T

What a layer sends does not shrink with N, and its FLOPs do: 8·S·w bytes against 24·B·T·D²/N of
forward FLOPs. That is why N stays inside a node. Lab: e02b_tensor_parallel.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.measure.traffic import ring_bytes
from minitrain.model.config import ModelConfig
from minitrain.parallel.tensor.heads import heads_of


class PassBytes(NamedTuple):
    """What one rank sends in one forward and in its backward."""

    forward: int
    backward: int


def layer_bytes(
    config: ModelConfig,
    batch: int,
    length: int,
    ranks: int,
    sequence: bool = False,
    number_bytes: int = 4,
    rank: int = 0,
) -> PassBytes:
    """Attention and MLP of one layer; `number_bytes` is 2 in bfloat16."""
    stream = batch * length * config.hidden_size * number_bytes
    shared = shared_bytes(config, ranks, number_bytes, rank)
    if not sequence:
        both = 2 * ring_bytes("all_reduce", stream, ranks)
        return PassBytes(both, both + shared)
    gather, scatter = (ring_bytes(kind, stream, ranks) for kind in ("all_gather", "reduce_scatter"))
    return PassBytes(2 * gather + 2 * scatter, 4 * gather + 2 * scatter + shared)


def shared_bytes(config: ModelConfig, ranks: int, number_bytes: int, rank: int) -> int:
    """The gradients of the key/value heads that this rank shares with others."""
    inputs = config.hidden_size + (1 if config.qkv_bias else 0)
    head = 2 * config.head_size * inputs * number_bytes
    shared = heads_of(rank, ranks, config.heads, config.kv_heads).shared
    return sum(ring_bytes("all_reduce", head, len(holders)) for holders in shared.values())


def ends_bytes(
    config: ModelConfig,
    batch: int,
    length: int,
    ranks: int,
    sequence: bool = False,
    number_bytes: int = 4,
) -> PassBytes:
    """Embedding, head and loss, whose two numbers a token are at least float32."""
    stream = batch * length * config.hidden_size * number_bytes
    loss = ring_bytes("all_gather", ranks * 2 * batch * length * max(4, number_bytes), ranks)
    if not sequence:
        once = ring_bytes("all_reduce", stream, ranks)
        return PassBytes(once + loss, once)
    gather, scatter = (ring_bytes(kind, stream, ranks) for kind in ("all_gather", "reduce_scatter"))
    return PassBytes(scatter + gather + loss, gather + scatter + gather)
