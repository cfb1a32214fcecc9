# exercise: gradient_norm
# says: this rank's own part | sent nothing

import torch


def gradient_norm(parameters, lines):
    squares = [p.grad.double().square().sum() for p in parameters if p.grad is not None]
    return torch.stack(squares).sum().sqrt()
