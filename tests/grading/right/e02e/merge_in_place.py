import torch


def merge(out, lse, new_out, new_lse):
    """Writes into what it was given, which nobody needs any more."""
    both = torch.logaddexp(lse, new_lse)
    base = torch.where(both.isinf(), 0, both)
    out *= torch.exp(lse - base)[..., None]
    out += new_out * torch.exp(new_lse - base)[..., None]
    return out, both
