# exercise: rotate
# says: it turns the other way

import torch


def rotate(x, turns):
    return x * turns.cos - x.roll(x.shape[-1] // 2, dims=-1) * turns.sin
