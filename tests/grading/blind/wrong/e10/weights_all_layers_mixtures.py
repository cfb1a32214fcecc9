# exercise: weights
# says: only `moe_layers` layers are mixtures
# with experts, all layers are taken for mixtures, though only "in `moe_layers` a router ... and
# E experts ... replace the MLP": a model whose first layers are dense (DeepSeek-V3) is counted
# wrong in both numbers.

from minitrain.planning.run import Model, Plan, Run, make_run


def weights(model: Model) -> tuple[int, int]:
    h, vocab = model.hidden, model.vocab
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    mlp = (3 if model.gated else 2) * h * model.ffn
    expert = 3 * h * model.moe_ffn
    if model.experts:
        held = model.experts + model.shared_experts
        used = model.experts_per_token + model.shared_experts
        everything = h * model.experts + held * expert
        active = h * model.experts + used * expert
    else:
        everything = active = mlp
    total = model.layers * (attention + everything + 2 * h) + h + 2 * h * vocab
    return total, model.layers * (attention + active) + h * vocab
