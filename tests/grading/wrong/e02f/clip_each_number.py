# exercise: clip_on_mesh
# says: one factor for the whole


def clip_on_mesh(parameters, limit, lines):
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, lines)
    for p in parameters:
        p.grad.clamp_(-limit, limit)
    return norm
