# exercise: merge
# says: -inf - -inf is NaN

import torch


def merge(out, lse, new_out, new_lse):
    both = torch.logaddexp(lse, new_lse)
    share, new_share = ((z - both).exp()[..., None] for z in (lse, new_lse))
    return out * share + new_out * new_share, both
