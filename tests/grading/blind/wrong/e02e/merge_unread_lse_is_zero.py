# exercise: merge
# says: only what is subtracted is replaced
# where neither set was read it returns lse = 0 instead of -inf ("two of them give 0 and -inf,
# not NaN")

import torch


def merge(out, lse, new_out, new_lse) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.logaddexp(lse, new_lse)
    both = both.masked_fill(both == -torch.inf, 0)
    share, new_share = ((z - both).exp()[..., None] for z in (lse, new_lse))
    return out * share + new_out * new_share, both
