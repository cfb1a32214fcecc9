# exercise: merge
# says: NaN where neither set was read
# a row that read nothing in either set: -inf - (-inf) is NaN, not guarded.

import torch


def merge(out, lse, new_out, new_lse):
    both = torch.logaddexp(lse, new_lse)
    old, new = ((z - both).exp()[..., None] for z in (lse, new_lse))
    return old * out + new * new_out, both
