# exercise: weights
# says: k and v have kv_heads heads
# the key/value heads are taken for as many as the query heads: k and v get ad columns each

from minitrain.planning.run import Model

def weights(model: Model) -> tuple[int, int]:
    h, d = model.hidden, model.head_size
    matrices = 3 if model.gated else 2
    attention = 2 * h * d * (model.heads + model.heads)
    dense = matrices * h * model.ffn
    expert = matrices * h * model.moe_ffn
    moe = model.moe_layers
    plain = model.layers - moe
    head = h * model.vocab
    router = h * model.experts
    common = model.layers * attention + plain * dense + moe * router + head
    active = common + moe * expert * (model.experts_per_token + model.shared_experts)
    held = common + moe * expert * (model.experts + model.shared_experts)
    held += head + (2 * model.layers + 1) * h
    return held, active
