# exercise: rotate
# says: the sign of sin came twice

import torch


def rotate(x, turns):
    a, b = x.chunk(2, dim=-1)
    return x * turns.cos + torch.cat([-b, a], dim=-1) * turns.sin
