# a reader's answer to `activation_bytes`, in which others made the mistakes of wrong/e10/activation_bytes_reader.diff

from minitrain.planning.run import Run


def activation_bytes(run: Run) -> float:
    m, plan = run.model, run.plan
    h, a, k, d, f = m.hidden, m.heads, m.kv_heads, m.head_size, m.ffn
    t, p, v = plan.tp, plan.pp, plan.vpp
    if v > 1:
        alive = m.layers * (1 + (p - 1) / (p * v))
    else:
        alive = min(p, run.microbatches) * m.layers / p
    if plan.recompute == "full":
        per = 2 * h
    else:
        whole = 8 * h if plan.modern else 10 * h
        if plan.sp:
            whole /= t
        cut = 4 * d * (a + k) + (6 if m.gated else 4) * f
        if plan.modern:
            scores = 4 * a
        elif plan.recompute == "selective":
            scores = 0
        else:
            scores = 5 * a * run.seq / plan.cp
        per = whole + (cut + scores) / t
    return alive * run.local_tokens * per
