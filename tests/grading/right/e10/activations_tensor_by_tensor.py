def activation_bytes(run):
    p, m = run.plan, run.model
    h, t = m.hidden, p.tp
    if p.recompute == "full":
        token = 2 * h
    else:
        inputs = {"norms": 4 * h, "attention": 2 * h, "mlp": 2 * h}
        if not p.modern:
            inputs["masks"] = 2 * h
        q = 2 * h
        kv = 4 * m.kv_heads * m.head_size
        inside = {"q": q, "kv": kv, "result": 2 * h, "mlp": m.ffn * (6 if m.gated else 4)}
        if p.modern:
            inside["log-sum"] = 4 * m.heads
        if not p.modern and p.recompute == "none":
            inside["scores"] = m.heads * run.seq / p.cp * (2 + 1 + 2)
        token = sum(inputs.values()) / (t if p.sp else 1) + sum(inside.values()) / t
    if p.vpp == 1:
        passes = min(p.pp, run.microbatches)
    else:
        passes = p.vpp * p.pp + p.pp - 1
    layers = m.layers / (p.pp * p.vpp)
    return passes * layers * token * p.micro_batch * run.seq / p.cp
