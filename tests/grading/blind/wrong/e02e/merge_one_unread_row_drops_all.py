# exercise: merge
# says: only the rows that a set did not read weigh nothing
# if any row of a set read nothing, the whole set is dropped; only that row has no share ("A row
# that read nothing has lse = -inf, out 0")

import torch


def merge(out, lse, new_out, new_lse) -> tuple[torch.Tensor, torch.Tensor]:
    if (new_lse == -torch.inf).any():
        return out, lse
    if (lse == -torch.inf).any():
        return new_out, new_lse
    both = torch.logaddexp(lse, new_lse)
    share, new_share = ((z - both).exp()[..., None] for z in (lse, new_lse))
    return out * share + new_out * new_share, both
