# exercise: activation_bytes
# says: the scores are 5 · heads · seq / cp
# the scores are 5·heads·seq a token, without the "/cp" of "scores 5·heads·seq/cp": right only
# without context parallelism.

from minitrain.planning.run import Model, Plan, Run, make_run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, p = model.hidden, plan.pp
    alive = model.layers * min(p, run.microbatches) / p
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
        split += 5 * model.heads * run.seq
    per_token = whole / (plan.tp if plan.sp else 1) + split / plan.tp
    return alive * run.local_tokens * per_token
