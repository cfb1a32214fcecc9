# exercise: step_flops
# says: part of a layer that is run again
# with fused attention `full` is taken to repeat no scores; the docstring: "`full` repeats
# forward without the head", and the exception for plan.modern is `selective`'s.

from minitrain.planning.run import Run


def _multiplying(model):
    h = model.hidden
    matrices = 3 if model.gated else 2
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    chosen = model.experts_per_token + model.shared_experts
    mixture = h * model.experts + chosen * matrices * h * model.moe_ffn
    dense = matrices * h * model.ffn
    mlps = (model.layers - model.moe_layers) * dense
    if model.moe_layers:
        mlps += model.moe_layers * mixture
    return model.layers * attention + mlps + h * model.vocab


def step_flops(run: Run) -> tuple[float, float]:
    model, plan = run.model, run.plan
    products = 2 * _multiplying(model)
    scores = 4 * model.layers * model.hidden * run.seq
    again = 0
    if plan.recompute == "full":
        again = products - 2 * model.hidden * model.vocab
    if plan.recompute in ("full", "selective") and not plan.modern:
        again += scores
    forward = products + scores
    return 3 * forward * run.tokens, (3 * forward + again) * run.tokens
