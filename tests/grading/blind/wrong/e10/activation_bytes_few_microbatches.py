# exercise: activation_bytes
# says: only m are in flight
# of 1F1B all layers are taken as alive, always ("p cancels"), but the rank holds "min(p, m)
# microbatches of l/p layers": with fewer microbatches than stages it holds m·l/p.

from minitrain.planning.run import Model, Plan, Run, make_run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, p = model.hidden, plan.pp
    alive = model.layers  # p microbatches of layers / p
    if plan.vpp > 1:
        alive = model.layers * (1 + (p - 1) / (p * plan.vpp))
    if plan.recompute == "full":
        return alive * run.local_tokens * 2.0 * h
    whole = (8 if plan.modern else 10) * h
    split = 4 * model.head_size * (model.heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.modern:
        split += 4 * model.heads
    elif plan.recompute == "none":
        split += 5 * model.heads * run.seq / plan.cp
    per_token = whole / (plan.tp if plan.sp else 1) + split / plan.tp
    return alive * run.local_tokens * per_token
