# exercise: step_flops
# says: so selective has none to repeat
# selective always repeats the scores; the docstring says "unless attention is fused
# (plan.modern), which keeps none", so there is nothing to repeat.

from minitrain.planning.run import Model, Plan, Run, make_run


def weights(model: Model) -> tuple[int, int]:  # of exercise 1, right, so that this file runs alone
    h, matrices = model.hidden, 3 if model.gated else 2
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    dense, sparse = model.layers - model.moe_layers, model.moe_layers
    both = model.layers * attention + dense * matrices * h * model.ffn + h * model.vocab
    both += sparse * (h * model.experts)
    expert = matrices * h * model.moe_ffn
    held = both + sparse * (model.experts + model.shared_experts) * expert
    held += (2 * model.layers + 1) * h + h * model.vocab
    return held, both + sparse * (model.experts_per_token + model.shared_experts) * expert


def step_flops(run: Run) -> tuple[float, float]:
    model = run.model
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * weights(model)[1] + scores
    again = 0
    if run.plan.recompute == "full":
        again = forward - 2 * model.hidden * model.vocab
    elif run.plan.recompute == "selective":
        again = scores
    return 3 * forward * run.tokens, (3 * forward + again) * run.tokens
