def step_flops(run):
    m, s = run.model, run.seq
    _, n = weights(m)
    attention = 12 * m.layers * m.hidden * s
    model = (6 * n + attention) * run.tokens
    if run.plan.recompute == "full":
        return model, model + (2 * (n - m.hidden * m.vocab) + attention // 3) * run.tokens
    if run.plan.recompute == "selective" and not run.plan.modern:
        return model, model + attention // 3 * run.tokens
    return model, model
