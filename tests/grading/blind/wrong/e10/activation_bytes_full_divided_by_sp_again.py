# exercise: activation_bytes
# says: with recompute full, with sp too
# with full recomputation and sequence parallelism the kept 2h are divided by t; the text says
# "full: 2h. Else whole 8h ..., which sp divides by t": sp divides whole only.

from minitrain.planning.run import Model, Plan, Run, make_run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, t, p = model.hidden, plan.tp, plan.pp
    if plan.vpp > 1:
        alive = model.layers * (1 + (p - 1) / (p * plan.vpp))
    else:
        alive = model.layers * min(p, run.microbatches) / p
    split = 0
    if plan.recompute == "full":
        whole = 2 * h
    else:
        whole = 8 * h if plan.modern else 10 * h
        split = 4 * model.head_size * (model.heads + model.kv_heads)
        split += (6 if model.gated else 4) * model.ffn
        if plan.modern:
            split += 4 * model.heads
        elif plan.recompute == "none":
            split += 5 * model.heads * run.seq / plan.cp
    return alive * run.local_tokens * (whole / (t if plan.sp else 1) + split / t)
