# exercise: rotate
# says: must take the *other* half

import torch


def rotate(x, turns):
    return x * turns.cos + x * turns.sin
