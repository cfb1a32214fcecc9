# exercise: merge
# says: Take the difference to `both` first
# what is subtracted is clamped at -100 to avoid NaN, so a row that did read keys, with scores
# of about -1,000, gets out 0; the text: each out counts with its share exp(lse - both), and
# scores of 1,000 (in size) exist.

import torch


def merge(out, lse, new_out, new_lse):
    both = torch.logaddexp(lse, new_lse)
    base = both.clamp(min=-100.0)  # -inf - -inf would be NaN
    old_share = (lse - base).exp()[..., None]
    new_share = (new_lse - base).exp()[..., None]
    return old_share * out + new_share * new_out, both
