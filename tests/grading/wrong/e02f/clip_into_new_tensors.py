# exercise: clip_on_mesh
# says: another tensor than before


def clip_on_mesh(parameters, limit, lines):
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, lines)
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            p.grad = p.grad * factor
    return norm
