# exercise: rotate
# says: the sin part is missing

import torch


def rotate(x, turns):
    return x * turns.cos
