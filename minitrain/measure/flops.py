"""FLOPs of a training step in closed form and counted; MFU.

A multiply-add is 2 FLOPs; only matmuls count. Per token, with P weights in matmuls (the embedding
is a lookup and counts nothing; the head counts, tied or not) and attention over T keys:

    forward  = 2 P + 4 L H h T      QKᵀ and AV: 2 FLOPs x 2 matmuls x L layers x H heads x h size
    backward = 2 x forward          one matmul for the input's gradient, one for the weight's

so a step is 6 P + 12 L H h T. Attention is counted in full although a causal mask hides half of it,
as in Kaplan et al. 2020 and PaLM (Chowdhery et al. 2022, app. B), so that MFU is comparable; a
sliding window counts its own T. Lab e01 builds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from minitrain.errors import InputError
from minitrain.measure.parameters import Shape, head_weights, matmul_parameters

Recompute = Literal["none", "selective", "full"]
FUSED_ATTENTION = tuple(  # torch's kernels, of which a version has some
    f"_scaled_dot_product_{kernel}_attention{ending}"
    for kernel in ("flash", "efficient", "cudnn", "fused")
    for ending in ("", "_for_cpu", "_overrideable")
)


def attention_flops_per_token(config: Shape, length: int) -> int:
    """Forward FLOPs of QKᵀ and AV for one token, over all layers."""
    keys = min(length, config.window or length)
    return 4 * config.layers * config.heads * config.head_size * keys


def forward_flops_per_token(config: Shape, length: int) -> int:
    return 2 * matmul_parameters(config) + attention_flops_per_token(config, length)


def flops_per_token(config: Shape, length: int) -> int:
    """Forward and backward of one token: 6 P + 12 L H h T."""
    return 3 * forward_flops_per_token(config, length)


def model_flops(config: Shape, batch: int, length: int) -> int:
    """FLOPs that one step over `batch` sequences needs, however it is computed."""
    return batch * length * flops_per_token(config, length)


def hardware_flops(config: Shape, batch: int, length: int, recompute: Recompute = "none") -> int:
    """FLOPs that one step executes: the model's, plus those of the recomputed forward.

    `selective` recomputes attention's scores, if they are materialized; `full` each whole block (or
    all but `down`, if recomputation stops early); the head is never recomputed.
    """
    scores = attention_flops_per_token(config, length)
    layers = 2 * (matmul_parameters(config) - head_weights(config))
    again = {"none": 0, "selective": scores, "full": layers + scores}
    if recompute not in again:
        raise InputError(f"recompute is '{recompute}'; it must be none, selective or full")
    return model_flops(config, batch, length) + batch * length * again[recompute]


def mfu(tokens_per_second: float, config: Shape, length: int, peak: float) -> float:
    """Model FLOPs utilisation: the fraction of `peak` FLOP/s (`clock.matmul_peak`) used."""
    return tokens_per_second * flops_per_token(config, length) / peak


def counted_flops(function: Callable[[], Any]) -> int:
    """FLOPs of the matmuls that `function` really runs, backward and recomputation included.

    torch's counter has no formula for the CPU's fused attention and counts it as 0; on a GPU it
    adds, in backward, the scores that the kernel recomputes. Here every fused attention costs two
    matmuls forward and four backward, on any device, so that counts are comparable.
    Attention and encoder layers that a kernel fuses in evaluation are run as their matmuls. Of a
    matrix times a vector it counts nothing, as torch's counter: give a batch of one instead.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode  # the closed forms above need no torch

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
            function()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops()


def _formulas() -> dict[Any, Callable[..., int]]:
    """Formulas for each fused attention that this version of torch has, and for integer and
    grouped matmuls."""
    import torch

    formulas: dict[Any, Callable[..., int]] = {
        getattr(torch.ops.aten, "_grouped_mm", None): _grouped_matmul,
        torch.ops.aten.mkldnn_rnn_layer: _recurrent_layer,
        torch.ops.aten._int_mm: lambda a, b, *_, **__: 2 * a[0] * a[1] * b[1],
    }
    for name in FUSED_ATTENTION:
        formulas[getattr(torch.ops.aten, name, None)] = _forward_attention
        formulas[getattr(torch.ops.aten, f"{name}_backward", None)] = _backward_attention
    formulas.pop(None, None)
    return formulas


def _grouped_matmul(left, right, *args, out_shape=None, **options) -> int:
    """(R, D) x (E, D, F) or, summing over rows, (D, R) x (R, F): 2·R·D·F both."""
    return 2 * left[0] * left[1] * right[-1]


def _recurrent_layer(inputs, of_input, of_state, *args, out_shape=None, **options) -> int:
    """(T, B, D) x (D, 4 H) and, step by step, (B, H) x (H, 4 H): an LSTM's on a CPU, forward."""
    return 2 * inputs[0] * inputs[1] * of_input[0] * (of_input[1] + of_state[1])


def _forward_attention(query, key, value, *args, out_shape=None, **options) -> int:
    """QKᵀ and AV of q (B, H, T, h), k and v (B, K, S, h), however few the K heads are."""
    batch, heads, rows, size = query
    return 2 * batch * heads * rows * key[2] * (size + value[3])


def _backward_attention(gradient, query, key, value, *args, out_shape=None, **options) -> int:
    return 2 * _forward_attention(query, key, value)
