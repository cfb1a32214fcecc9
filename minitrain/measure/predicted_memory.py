"""The ledger's categories in closed form: a step's memory, before anything is built.

With P parameters of s bytes, AdamW holds s P of weights, s P of gradients and 2 s P of state. For
backward, each of L blocks keeps per token (D width, HC and KC the widths of queries and keys, F the
MLP's width), in the model's dtype on the left and always in float32 on the right:

    2 norms       4 D          each its input and its output         2   1/rms of each
    attention     2 HC + 2 KC  q, k, v, out                          H   the softmax's log-sum
    MLP           4 F          gate, silu(gate), up, their product
    or experts    K (2 D + 2 F')  for each of K choices: its token, gate, up, the output
                  4 S F'       the shared ones                         2 E  logits, probabilities

and once per model 2 D and 1 of the last norm, V log-probabilities in float32, the rotation and the
mask. No T² of scores, which the fused attention (Dao et al. 2022) does not keep: they are the
term 5 a s / h of Korthikanti et al. 2022, whose other terms, for a Llama, are above. With
recomputation a block keeps less: its input, D, if recomputed whole; 2 D + 2 HC + 2 KC + 2 F and H
if matmul results are kept, and norms, rotation and SwiGLU recomputed. Labs e01, e05.
"""

from __future__ import annotations

import torch

from minitrain.errors import InputError
from minitrain.measure.flops import Recompute
from minitrain.measure.parameters import Shape, parameter_count

FLOAT32 = 4


def block_bytes_per_token(
    config: Shape, dtype: torch.dtype = torch.float32, recompute: Recompute = "none"
) -> int:
    """Bytes that one block saves per token, its input included."""
    if config.experts and recompute == "selective":
        raise InputError("what selective recomputation keeps of experts is not known: none or full")
    width, ffn, heads = config.hidden_size, config.ffn_size, config.heads
    projected = 2 * config.head_size * (heads + config.kv_heads)  # q, k, v and out
    mlp = 0 if config.experts else 4 * ffn
    kept = {  # numbers in the model's dtype, and in float32
        "none": (4 * width + projected + mlp, 2 + heads),
        "selective": (2 * width + projected + 2 * ffn, heads),
        "full": (width, 0),
    }
    if recompute not in kept:
        raise InputError(f"recompute is '{recompute}'; it must be none, selective or full")
    own, wide = kept[recompute]
    mixture = _mixture(config, dtype.itemsize) if config.experts and recompute == "none" else 0
    return dtype.itemsize * own + FLOAT32 * wide + mixture


def predicted_activations(
    config: Shape,
    batch: int,
    length: int,
    dtype: torch.dtype = torch.float32,
    packed: bool = False,
    recompute: Recompute = "none",
) -> int:
    """Bytes saved for backward at the end of the forward and the loss; the formula above.

    `packed`: with document ids, so that mask and positions differ between sequences.
    """
    size = dtype.itemsize
    last = size * 2 * config.hidden_size + FLOAT32 * (1 + config.vocab_size)
    per_token = config.layers * block_bytes_per_token(config, dtype, recompute) + last
    sequences = batch if packed else 1
    masked = packed or (config.window or length) < length
    shared = 2 * config.head_size * length  # cos and sin
    shared += length * length if masked else 0
    indices = 2 * 8 * batch * length  # tokens and targets, int64
    return batch * length * per_token + sequences * shared * size + indices


def _mixture(config: Shape, size: int) -> int:
    """Bytes per token kept by a layer of experts."""
    inner, chosen = config.expert_ffn_size, config.experts_per_token
    choices = size * chosen * (2 * config.hidden_size + 2 * inner)
    shared = size * 4 * config.shared_experts * inner
    copy = FLOAT32 * config.hidden_size if size < FLOAT32 else 0  # the router reads float32
    numbers = 3 * 8 + 2 * FLOAT32 + 1  # expert, row and token of a choice; its weights; is it kept
    return choices + shared + copy + FLOAT32 * 2 * config.experts + numbers * chosen


def predict_memory(
    config: Shape,
    batch: int,
    length: int,
    dtype: torch.dtype = torch.float32,
    packed: bool = False,
    states_per_parameter: int = 2,
    recompute: Recompute = "none",
) -> dict[str, int]:
    """Bytes by category, each at its maximum within a step; `MemoryLedger.highest` measures them.

    `states_per_parameter` is 2 for AdamW, 1 for SGD with momentum, 0 for plain SGD; they have the
    parameters' dtype. Tensors recomputed during backward count as temporaries.
    """
    weights = dtype.itemsize * parameter_count(config)
    return {
        "parameters": weights,
        "gradients": weights,
        "optimizer": states_per_parameter * weights,
        "activations": predicted_activations(config, batch, length, dtype, packed, recompute),
    }
