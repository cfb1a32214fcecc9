# exercise: weights
# says: a token meets the router once
# the router's matrix is counted once for each chosen expert among the active weights, though a
# token is multiplied by it once

from minitrain.planning.run import Model


def weights(model: Model) -> tuple[int, int]:
    h, d = model.hidden, model.head_size
    attention = 2 * h * d * (model.heads + model.kv_heads)
    matrices = 3 if model.gated else 2
    dense = model.layers - model.moe_layers
    common = model.layers * attention + dense * matrices * h * model.ffn
    expert = matrices * h * model.moe_ffn
    shared = model.shared_experts * expert
    held = model.moe_layers * (h * model.experts + model.experts * expert + shared)
    chosen = model.moe_layers * (
        model.experts_per_token * (h * model.experts + expert) + shared
    )
    norms = model.layers * 2 * h + h
    table = h * model.vocab
    return common + held + norms + 2 * table, common + chosen + table
