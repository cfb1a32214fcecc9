# exercise: weights
# says: the norms are missing


def weights(model):
    h, mixtures = model.hidden, model.moe_layers
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    matrices = 3 if model.gated else 2
    dense = (model.layers - mixtures) * matrices * h * model.ffn
    expert = matrices * h * model.moe_ffn
    router = mixtures * h * model.experts
    same = model.layers * attention + dense + router + h * model.vocab
    norms = (2 * model.layers + 1) * h
    held = mixtures * (model.shared_experts + model.experts) * expert
    active = mixtures * (model.shared_experts + model.experts_per_token) * expert
    return same + held + h * model.vocab, same + active
