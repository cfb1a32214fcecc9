# exercise: activation_bytes
# says: fused attention are cut by tp, too
# fused attention's number a head and token, 4a bytes, is added whole on every tensor rank
# instead of divided by t

from minitrain.planning.run import Run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, d, p, v, t = model.hidden, model.head_size, plan.pp, plan.vpp, plan.tp
    if v > 1:
        alive = model.layers * (1 + (p - 1) / (p * v))
    else:
        alive = min(p, run.microbatches) * model.layers / p
    if plan.recompute == "full":
        each = 2 * h
    else:
        each = (8 if plan.modern else 10) * h / (t if plan.sp else 1)
        each += 4 * d * (model.heads + model.kv_heads) / t
        each += (6 if model.gated else 4) * model.ffn / t
        if plan.modern:
            each += 4 * model.heads
        elif plan.recompute == "none":
            each += 5 * model.heads * run.seq / plan.cp / t
    return alive * run.local_tokens * each
