# exercise: merge
# says: that is the mean

import torch


def merge(out, lse, new_out, new_lse):
    return (out + new_out) / 2, torch.logaddexp(lse, new_lse)
