# exercise: step_flops
# says: but never the head
# full recomputation repeats the whole forward, head included: 4/3 of the model FLOPs

from minitrain.planning.run import Run

def step_flops(run: Run) -> tuple[float, float]:
    m, plan = run.model, run.plan
    active = weights(m)[1]
    scores = 4 * m.layers * m.hidden * run.seq
    forward = 2 * active + scores
    extra = 0
    if plan.recompute == "full":
        extra = forward
    elif plan.recompute == "selective" and not plan.modern:
        extra = scores
    return 3 * forward * run.tokens, (3 * forward + extra) * run.tokens
