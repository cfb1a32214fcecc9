# exercise: tree_broadcast
# says: ready-made broadcast

import torch


def tree_broadcast(group, tensor, root=0):
    return group.broadcast(tensor.clone(), root)
