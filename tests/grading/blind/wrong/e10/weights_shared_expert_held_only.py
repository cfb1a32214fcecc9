# exercise: weights
# says: every token passes them
# shared experts are held but not counted among those that multiply a token; the docstring says
# "Shared experts multiply every token".

from minitrain.planning.run import Model, Plan, Run, make_run


def weights(model: Model) -> tuple[int, int]:
    h, matrices = model.hidden, 3 if model.gated else 2
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    moe = model.moe_layers
    both = model.layers * attention + (model.layers - moe) * matrices * h * model.ffn
    both += moe * h * model.experts + h * model.vocab
    expert = matrices * h * model.moe_ffn
    held = both + moe * (model.experts + model.shared_experts) * expert
    held += (2 * model.layers + 1) * h + h * model.vocab
    return held, both + moe * model.experts_per_token * expert
