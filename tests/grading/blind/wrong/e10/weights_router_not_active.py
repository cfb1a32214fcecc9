# exercise: weights
# says: hidden x experts a layer
# the routers are counted as held, but not among those that multiply a token, although "those
# that multiply one token" are the "matrices and head", and a router is a matrix h x E of every
# mixture layer (hint 1).

from minitrain.planning.run import Model, Plan, Run, make_run


def weights(model: Model) -> tuple[int, int]:
    h, moe = model.hidden, model.moe_layers
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    mlp = (3 if model.gated else 2) * h * model.ffn
    expert = 3 * h * model.moe_ffn
    shared = model.layers * attention + (model.layers - moe) * mlp + h * model.vocab
    held = moe * (h * model.experts + (model.experts + model.shared_experts) * expert)
    norms = (2 * model.layers + 1) * h
    used = moe * (model.experts_per_token + model.shared_experts) * expert
    return shared + held + norms + h * model.vocab, shared + used
