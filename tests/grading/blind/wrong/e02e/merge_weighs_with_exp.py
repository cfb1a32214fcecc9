# exercise: merge
# says: the shares exp(lse - both) add up to 1
# each out is weighed with exp(lse), and nothing divides by the sum of the weights
import torch


def merge(out, lse, new_out, new_lse):
    both = torch.logaddexp(lse, new_lse)
    return out * lse.exp()[..., None] + new_out * new_lse.exp()[..., None], both
