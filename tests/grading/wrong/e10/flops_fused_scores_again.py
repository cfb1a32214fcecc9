# exercise: step_flops
# says: keeps no scores, so selective has none


def step_flops(run):
    model = run.model
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * weights(model)[1] + scores
    again = {"none": 0, "selective": scores, "full": forward - 2 * model.hidden * model.vocab}[
        run.plan.recompute
    ]
    return 3 * forward * run.tokens, (3 * forward + again) * run.tokens
