# exercise: step_flops
# says: part of a layer that is run again
# with full recomputation and fused attention the scores are not counted again; the docstring
# says full "repeats forward without the head", and only selective asks whether attention is
# fused.

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
    model, plan = run.model, run.plan
    products = 2 * weights(model)[1]
    scores = 4 * model.layers * model.hidden * run.seq
    kept_scores = 0 if plan.modern else scores
    again = {
        "none": 0,
        "selective": kept_scores,
        "full": products - 2 * model.hidden * model.vocab + kept_scores,
    }[plan.recompute]
    ours = 3 * (products + scores)
    return ours * run.tokens, (ours + again) * run.tokens
