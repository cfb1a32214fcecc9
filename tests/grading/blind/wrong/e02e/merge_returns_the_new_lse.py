# exercise: merge
# says: that is the new set's
# the lse that goes on is that of the second set alone, not of both
import torch


def merge(out, lse, new_out, new_lse):
    both = torch.logaddexp(lse, new_lse)
    base = both.masked_fill(both == -torch.inf, 0)
    share, new_share = ((z - base).exp()[..., None] for z in (lse, new_lse))
    return out * share + new_out * new_share, new_lse
