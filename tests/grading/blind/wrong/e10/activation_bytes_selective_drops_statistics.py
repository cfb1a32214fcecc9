# exercise: activation_bytes
# says: with selective recomputation, too
# selective drops the 4 bytes a head of fused attention too; the text says "5 heads seq/cp,
# which selective drops and nothing else".

from minitrain.planning.run import Model, Plan, Run, make_run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, t, p = model.hidden, plan.tp, plan.pp
    if plan.vpp > 1:
        alive = model.layers * (1 + (p - 1) / (p * plan.vpp))
    else:
        alive = model.layers * min(p, run.microbatches) / p
    if plan.recompute == "full":
        return alive * run.local_tokens * 2 * h
    whole = 8 * h if plan.modern else 10 * h
    split = 4 * model.head_size * (model.heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.recompute == "none":
        row = 4 if plan.modern else 5 * run.seq / plan.cp
        split += model.heads * row
    return alive * run.local_tokens * (whole / (t if plan.sp else 1) + split / t)
