# exercise: step_flops
# says: so selective has none to repeat
# `selective` always repeats the scores, the docstring's "unless attention is fused
# (plan.modern), which keeps none" is missing.

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
    model = run.model
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * _weights(model)[1] + scores
    again = 0
    if run.plan.recompute == "full":
        again = forward - 2 * model.hidden * model.vocab
    elif run.plan.recompute == "selective":
        again = scores
    return 3.0 * forward * run.tokens, float(3 * forward + again) * run.tokens
