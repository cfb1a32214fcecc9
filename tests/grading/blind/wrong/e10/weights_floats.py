# exercise: weights
# says: without a gate an expert has two matrices
# the counts come back as floats, because the head's size is made with `/`; the signature says
# tuple[int, int], and the notebook's next cell prints them with ",d".

from minitrain.planning.run import Model, Plan, Run, make_run


def weights(model: Model) -> tuple[int, int]:
    h, moe = model.hidden, model.moe_layers
    queries = h * h
    keys = h * model.kv_heads * h / model.heads  # h x (kv_heads · head_size)
    attention = 2 * queries + 2 * keys
    mlp = (3 if model.gated else 2) * h * model.ffn
    expert = 3 * h * model.moe_ffn
    both = model.layers * attention + (model.layers - moe) * mlp
    both += moe * h * model.experts + h * model.vocab
    held = both + moe * (model.experts + model.shared_experts) * expert
    held += (2 * model.layers + 1) * h + h * model.vocab
    return held, both + moe * (model.experts_per_token + model.shared_experts) * expert
