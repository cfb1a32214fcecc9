# exercise: activation_bytes
# says: only m are in flight
# takes all layers for alive, as if there were always p microbatches or more; the text says 1F1B
# "holds min(p, m) microbatches of l/p layers".

from minitrain.planning.run import Model, Plan, Run, make_run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, t, p = model.hidden, plan.tp, plan.pp
    alive = model.layers  # p microbatches of layers / p
    if plan.vpp > 1:
        alive *= 1 + (p - 1) / (p * plan.vpp)
    if plan.recompute == "full":
        return alive * run.local_tokens * 2 * h
    whole = 8 * h if plan.modern else 10 * h
    split = 4 * model.head_size * (model.heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.modern:
        split += 4 * model.heads
    elif plan.recompute == "none":
        split += 5 * model.heads * run.seq / plan.cp
    return alive * run.local_tokens * (whole / (t if plan.sp else 1) + split / t)
