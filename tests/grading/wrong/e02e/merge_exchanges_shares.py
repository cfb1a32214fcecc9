# exercise: merge
# says: the two shares are exchanged

import torch


def merge(out, lse, new_out, new_lse):
    share = torch.sigmoid(new_lse - lse)[..., None]
    return out * share + new_out * (1 - share), torch.logaddexp(lse, new_lse)
