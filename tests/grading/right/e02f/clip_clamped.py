def clip_on_mesh(parameters, limit, lines):
    """Always multiplies, by 1 where nothing is to be clipped."""
    mine = tuple(parameters)
    norm = gradient_norm(list(mine), lines)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p in mine:
        if p.grad is not None:
            p.grad.mul_(factor)
    return norm
