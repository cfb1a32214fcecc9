# exercise: merge
# says: Take the difference to `both` first

import torch


def merge(out, lse, new_out, new_lse):
    old, new = lse.exp(), new_lse.exp()
    both = old + new
    share, new_share = (z.nan_to_num(0)[..., None] for z in (old / both, new / both))
    return out * share + new_out * new_share, both.log()
