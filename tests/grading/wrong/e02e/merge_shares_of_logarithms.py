# exercise: merge
# says: lse is a logarithm

import torch


def merge(out, lse, new_out, new_lse):
    share = (lse / (lse + new_lse))[..., None]
    return out * share + new_out * (1 - share), torch.logaddexp(lse, new_lse)
