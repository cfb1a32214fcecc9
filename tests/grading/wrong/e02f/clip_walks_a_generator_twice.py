# exercise: clip_on_mesh
# says: nothing was clipped


def clip_on_mesh(parameters, limit, lines):
    norm = gradient_norm(parameters, lines)
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            p.grad *= factor
    return norm
