# exercise: clip_on_mesh
# says: a `.grad` is another tensor than before
# Each .grad is replaced by a new, scaled tensor, so whoever holds the gradient (a flat buffer,
# another name) keeps the unclipped one; the text says the factor "multiplies every `.grad` that
# is not None, in place".

import torch


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    parameters = list(parameters)
    norm = gradient_norm(parameters, lines)
    factor = float(limit / (norm + 1e-6))
    if factor < 1:
        for p in parameters:
            if p.grad is not None:
                p.grad = p.grad * factor
    return norm
