# exercise: merge
# says: torch.logaddexp takes the larger one out

import torch


def merge(out, lse, new_out, new_lse):
    both = torch.logaddexp(lse, new_lse)
    base = both.masked_fill(both == -torch.inf, 0)
    share, new_share = ((z - base).exp()[..., None] for z in (lse, new_lse))
    return out * share + new_out * new_share, (lse.exp() + new_lse.exp()).log()
