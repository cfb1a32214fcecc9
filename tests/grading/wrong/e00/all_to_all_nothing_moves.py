# exercise: pairwise_all_to_all
# says: nothing moved

import torch


def pairwise_all_to_all(group, chunks):
    return [chunk.clone() for chunk in chunks]
