"""Parameters and FLOPs of a run in closed form: dense or mixture, gated or not.

Weights that multiply, of one layer, with h hidden, a heads of size h/a, k key/value heads, f ffn:

    attention  h·h (2 + 2 k/a)         q and o, k and v
    MLP        2 h f, gated 3 h f      of a mixture: (experts per token + shared) of them, + router

A multiply-add is 2 FLOPs, so a token costs 2 FLOPs per weight forward and 4 backward, and
attention's scores 4 h s forward per layer, counted in full though causal masking hides half (as
Narayanan et al. 2021, eq. 3, and PaLM, app. B). For GPT (f = 4h) and one step of B sequences that
is the papers' 72 B s l h² (1 + s/(6h) + V/(12 l h)).

MFU counts these *model* FLOPs, HFU adds what recomputation repeats. The "52% of peak" of the 2021
Megatron table is an HFU: full recomputation repeats the forward, 96 in place of 72.
"""

from __future__ import annotations

from minitrain.planning.run import Model, Run


def attention_weights(model: Model) -> int:
    return 2 * model.hidden * model.head_size * (model.heads + model.kv_heads)


def mlp_weights(model: Model, ffn: int) -> int:
    return (3 if model.gated else 2) * model.hidden * ffn


def router_weights(model: Model) -> int:
    return model.hidden * model.experts


def expert_weights(model: Model) -> int:
    """All routed experts of one layer: what expert parallelism spreads."""
    return model.experts * mlp_weights(model, model.moe_ffn)


def layer_weights(model: Model, mixture: bool) -> int:
    """Of one layer without its routed experts: attention, MLP or shared experts, norms, biases."""
    if mixture:
        mlp = model.shared_experts * mlp_weights(model, model.moe_ffn) + router_weights(model)
    else:
        mlp = mlp_weights(model, model.ffn)
    return attention_weights(model) + mlp + small_weights(model)


def small_weights(model: Model) -> int:
    """Norms and biases: GPT's 13 h (4 of norms, 9 of biases when f = 4h), Llama's 2 h."""
    if model.gated:
        return 2 * model.hidden
    biases = 3 * model.hidden + 2 * model.kv_heads * model.head_size + model.ffn
    return 4 * model.hidden + biases


def embedding_weights(model: Model, seq: int) -> int:
    """The table, and learned positions of a GPT; a GPT's head is the same table (tied)."""
    return model.vocab * model.hidden + (0 if model.gated else seq * model.hidden)


def head_weights(model: Model) -> int:
    return model.vocab * model.hidden


def parameter_count(model: Model, seq: int) -> int:
    dense, mixture = model.layers - model.moe_layers, model.moe_layers
    layers = dense * layer_weights(model, False)
    if mixture:
        layers += mixture * (layer_weights(model, True) + expert_weights(model))
    last = model.hidden if model.gated else 2 * model.hidden  # the last norm
    head = head_weights(model) if model.gated else 0
    return layers + embedding_weights(model, seq) + last + head


def active_weights(model: Model) -> int:
    """Weights that multiply one token, head included."""
    dense = attention_weights(model) + mlp_weights(model, model.ffn)
    active = model.experts_per_token + model.shared_experts
    mixture = attention_weights(model) + router_weights(model)
    mixture += active * mlp_weights(model, model.moe_ffn)
    dense_layers = model.layers - model.moe_layers
    return dense_layers * dense + model.moe_layers * mixture + head_weights(model)


def attention_flops(model: Model, seq: int) -> int:
    """Forward FLOPs of QKᵀ and AV for one token, over all layers, in full."""
    return 4 * model.layers * model.hidden * seq


def forward_flops(model: Model, seq: int) -> int:
    """Of one token."""
    return 2 * active_weights(model) + attention_flops(model, seq)


def model_flops(run: Run) -> int:
    """Of one step of the whole batch: forward and backward, however it is computed."""
    return 3 * run.tokens * forward_flops(run.model, run.seq)


def recomputed_flops(run: Run) -> int:
    """Of one step: what is done again. `full` repeats every layer, but never the head.

    `selective` repeats the scores, unless attention is fused: that keeps none, and its backward
    always makes them again, which is not counted.
    """
    scores = attention_flops(run.model, run.seq)
    layers = 2 * (active_weights(run.model) - head_weights(run.model))
    fused = run.plan.modern
    again = {"none": 0, "selective": 0 if fused else scores, "full": layers + scores}
    return run.tokens * again[run.plan.recompute]


def hardware_flops(run: Run) -> int:
    return model_flops(run) + recomputed_flops(run)
