# exercise: step_flops
# says: but never the head


def step_flops(run):
    model = run.model
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * weights(model)[1] + scores
    again = {"none": 0, "selective": 0 if run.plan.modern else scores, "full": forward}[
        run.plan.recompute
    ]
    return 3 * forward * run.tokens, (3 * forward + again) * run.tokens
