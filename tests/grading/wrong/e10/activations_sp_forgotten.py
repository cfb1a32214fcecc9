# exercise: activation_bytes
# says: are cut by tp too


def activation_bytes(run):
    plan, model, h = run.plan, run.model, run.model.hidden
    alive = min(plan.pp, run.microbatches) / plan.pp
    if plan.vpp > 1:
        alive = 1 + (plan.pp - 1) / (plan.pp * plan.vpp)
    if plan.recompute == "full":
        return alive * model.layers * run.local_tokens * 2 * h
    whole = (8 if plan.modern else 10) * h
    split = 4 * model.head_size * (model.heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.modern:
        split += 4 * model.heads
    elif plan.recompute == "none":
        split += 5 * model.heads * run.seq / plan.cp
    return alive * model.layers * run.local_tokens * (whole + split / plan.tp)
