# exercise: step_flops
# says: part of a layer that is run again
# with `full` and fused attention the scores are left out of what is repeated; "`full` repeats
# forward without the head", scores and all: plan.modern is an exception of `selective` only.

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
    matrices = 2 * _weights(model)[1]
    scores = 4 * model.layers * model.hidden * run.seq
    repeated_scores = 0 if plan.modern else scores  # fused attention keeps none
    again = {
        "none": 0,
        "selective": repeated_scores,
        "full": matrices - 2 * model.hidden * model.vocab + repeated_scores,
    }[plan.recompute]
    ours = 3.0 * (matrices + scores)
    return ours * run.tokens, (ours + again) * run.tokens
