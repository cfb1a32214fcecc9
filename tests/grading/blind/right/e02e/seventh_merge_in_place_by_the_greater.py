# exercise: merge
# how it differs: subtracts the greater of the two lse by hand, without logaddexp, normalises at
# the end, and writes into its arguments.
import torch


def merge(out, lse, new_out, new_lse) -> tuple[torch.Tensor, torch.Tensor]:
    top = torch.maximum(lse, new_lse)
    top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    weight, new_weight = torch.exp(lse - top), torch.exp(new_lse - top)
    total = weight + new_weight  # 1 to 2, or 0 where nothing was read
    safe = torch.where(total == 0, torch.ones_like(total), total)
    out.mul_((weight / safe).unsqueeze(-1))
    out.addcmul_(new_out, (new_weight / safe).unsqueeze(-1))
    return out, top + total.log()
