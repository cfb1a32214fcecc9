# exercise: merge
# says: divided by its own softmax

import torch


def merge(out, lse, new_out, new_lse):
    return out + new_out, torch.logaddexp(lse, new_lse)
