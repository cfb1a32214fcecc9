# exercise: ring_all_reduce
# says: ready-made all_reduce

import torch


def ring_all_reduce(group, tensor):
    return group.all_reduce(tensor.clone())
