# exercise: clip_on_mesh
# says: 1e-6


def clip_on_mesh(parameters, limit, lines):
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, lines)
    factor = limit / norm
    if factor < 1:
        for p in parameters:
            p.grad *= factor
    return norm
