# exercise: weights
# says: only `moe_layers` layers are mixtures
# in a mixture every layer is taken for a MoE layer: model.layers instead of model.moe_layers

from minitrain.planning.run import Model

def weights(model: Model) -> tuple[int, int]:
    h, d = model.hidden, model.head_size
    matrices = 3 if model.gated else 2
    attention = 2 * h * d * (model.heads + model.kv_heads)
    dense = matrices * h * model.ffn
    expert = matrices * h * model.moe_ffn
    moe = model.layers if model.experts else 0
    plain = model.layers - moe
    head = h * model.vocab
    router = h * model.experts
    common = model.layers * attention + plain * dense + moe * router + head
    active = common + moe * expert * (model.experts_per_token + model.shared_experts)
    held = common + moe * expert * (model.experts + model.shared_experts)
    held += head + (2 * model.layers + 1) * h
    return held, active
