# exercise: clip_on_mesh
# says: the weights changed


def clip_on_mesh(parameters, limit, lines):
    parameters = list(parameters)
    norm = gradient_norm(parameters, lines)
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            p.data *= factor
    return norm
