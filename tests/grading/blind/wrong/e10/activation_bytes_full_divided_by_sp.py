# exercise: activation_bytes
# says: with recompute full, with sp too
# with sequence parallelism the 2h of `full` are divided by t too; the text has "`full`: 2h",
# and what `sp` divides is the `whole` part of the other ways only.

from minitrain.planning.run import Model, Plan, Run, make_run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, p, t = model.hidden, plan.pp, plan.tp
    alive = model.layers * min(p, run.microbatches) / p
    if plan.vpp > 1:
        alive = model.layers * (1 + (p - 1) / (p * plan.vpp))
    share = t if plan.sp else 1
    if plan.recompute == "full":
        return alive * run.local_tokens * 2 * h / share
    whole = (8 if plan.modern else 10) * h
    split = 4 * model.head_size * (model.heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.modern:
        split += 4 * model.heads
    elif plan.recompute == "none":
        split += 5 * model.heads * run.seq / plan.cp
    return alive * run.local_tokens * (whole / share + split / t)
