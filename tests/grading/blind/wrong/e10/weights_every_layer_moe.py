# exercise: weights
# says: the first dense_layers keep their MLP of ffn
# as soon as a model has experts, all its layers are taken as mixtures; dense layers among them
# lose their MLP of ffn

from minitrain.planning.run import Model


def weights(model: Model) -> tuple[int, int]:
    h = model.hidden
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    matrices = 3 if model.gated else 2
    if model.experts:
        expert = matrices * h * model.moe_ffn
        router = h * model.experts
        mlp = router + (model.experts + model.shared_experts) * expert
        used = router + (model.experts_per_token + model.shared_experts) * expert
    else:
        mlp = used = matrices * h * model.ffn
    table = h * model.vocab
    held = model.layers * (attention + mlp + 2 * h) + h + 2 * table
    return held, model.layers * (attention + used) + table
