# exercise: step_flops
# says: a token meets experts_per_token
# the weights that multiply a token are made from all parameters less embedding and norms, so
# every expert counts: "it costs FLOPs only where it multiplies a token" (right for dense models
# only).

from minitrain.planning.run import Model, Plan, Run, make_run

def _weights(model: Model) -> tuple[int, int]:
    """Exercise 1, as the text has it."""
    h, moe = model.hidden, model.moe_layers
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    mlp = (3 if model.gated else 2) * h * model.ffn
    expert = 3 * h * model.moe_ffn
    both = model.layers * attention + (model.layers - moe) * mlp
    both += moe * h * model.experts + h * model.vocab
    held = both + moe * (model.experts + model.shared_experts) * expert
    held += (2 * model.layers + 1) * h + h * model.vocab
    return held, both + moe * (model.experts_per_token + model.shared_experts) * expert


def step_flops(run: Run) -> tuple[float, float]:
    model, plan = run.model, run.plan
    idle = model.hidden * model.vocab + (2 * model.layers + 1) * model.hidden
    matrices = _weights(model)[0] - idle  # no embedding, no norms
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * matrices + scores
    again = 0
    if plan.recompute == "full":
        again = forward - 2 * model.hidden * model.vocab
    elif plan.recompute == "selective" and not plan.modern:
        again = scores
    return 3.0 * forward * run.tokens, float(3 * forward + again) * run.tokens
