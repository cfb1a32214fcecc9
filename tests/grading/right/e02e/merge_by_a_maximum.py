import torch


def merge(out, lse, new_out, new_lse):
    """By hand: weights relative to the larger of the two."""
    top = torch.maximum(lse, new_lse).clamp(min=torch.finfo(lse.dtype).min)
    weight, new_weight = (lse - top).exp(), (new_lse - top).exp()
    total = weight + new_weight
    scale = total.masked_fill(total == 0, 1)
    mixed = out * (weight / scale).unsqueeze(-1) + new_out * (new_weight / scale).unsqueeze(-1)
    return mixed, (top + total.log()).masked_fill(total == 0, -torch.inf)
