# exercise: merge
# says: only what is subtracted is replaced
# two rows that read nothing give lse 0 instead of -inf, though the text says "two of them give
# 0 and -inf, not NaN".

import torch


def merge(out, lse, new_out, new_lse):
    both = torch.logaddexp(lse, new_lse)
    both = both.masked_fill(both == -torch.inf, 0)
    old_share = (lse - both).exp()[..., None]
    new_share = (new_lse - both).exp()[..., None]
    return old_share * out + new_share * new_out, both
