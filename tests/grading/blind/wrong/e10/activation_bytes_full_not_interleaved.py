# exercise: activation_bytes
# says: interleaved holds more
# `full` returns early with the layers alive of plain 1F1B, also where the schedule is
# interleaved; the text counts "the layers alive on the first pipeline rank ... Interleaved ...:
# l·(1 + (p-1)/(p·v))" for every recompute.

from minitrain.planning.run import Run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, t, p = model.hidden, plan.tp, plan.pp
    alive = model.layers * min(p, run.microbatches) / p
    if plan.recompute == "full":
        return alive * run.local_tokens * 2 * h
    if plan.vpp > 1:
        alive = model.layers * (1 + (p - 1) / (p * plan.vpp))
    whole = 8 * h if plan.modern else 10 * h
    split = 4 * model.head_size * (model.heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.modern:
        split += 4 * model.heads
    elif plan.recompute == "none":
        split += 5 * model.heads * run.seq / plan.cp
    per_token = whole / (t if plan.sp else 1) + split / t
    return alive * run.local_tokens * per_token
