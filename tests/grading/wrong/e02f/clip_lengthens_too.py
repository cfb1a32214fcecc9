# exercise: clip_on_mesh
# says: Clipping only shortens | only shortens


def clip_on_mesh(parameters, limit, lines):
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, lines)
    factor = limit / (norm + 1e-6)
    for p in parameters:
        p.grad *= factor
    return norm
