# exercise: step_flops
# says: that is forward alone


def step_flops(run):
    model = run.model
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * weights(model)[1] + scores
    again = {
        "none": 0,
        "selective": 0 if run.plan.modern else scores,
        "full": forward - 2 * model.hidden * model.vocab,
    }[run.plan.recompute]
    return forward * run.tokens, (forward + again) * run.tokens
