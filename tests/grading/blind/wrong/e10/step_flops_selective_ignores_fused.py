# exercise: step_flops
# says: test plan.modern
# selective recomputation repeats the scores also where attention is fused (plan.modern)

from minitrain.planning.run import Run

def step_flops(run: Run) -> tuple[float, float]:
    m, plan = run.model, run.plan
    active = weights(m)[1]
    scores = 4 * m.layers * m.hidden * run.seq
    forward = 2 * active + scores
    extra = 0
    if plan.recompute == "full":
        extra = forward - 2 * m.hidden * m.vocab
    elif plan.recompute == "selective":
        extra = scores
    return 3 * forward * run.tokens, (3 * forward + extra) * run.tokens
