# exercise: weights
# says: only `moe_layers` layers are mixtures
# a model with experts gets them in every layer, so its first dense layers (as in DeepSeek-V3)
# lose their MLP; the text says experts replace the MLP "In moe_layers" only.

from minitrain.planning.run import Model, Plan, Run, make_run


def weights(model: Model) -> tuple[int, int]:
    h, matrices = model.hidden, 3 if model.gated else 2
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    shared = model.layers * attention + h * model.vocab
    norms = (2 * model.layers + 1) * h
    if not model.experts:
        shared += model.layers * matrices * h * model.ffn
        return shared + norms + h * model.vocab, shared
    expert = matrices * h * model.moe_ffn
    shared += model.layers * (h * model.experts + model.shared_experts * expert)
    held = shared + model.layers * model.experts * expert + norms + h * model.vocab
    return held, shared + model.layers * model.experts_per_token * expert
