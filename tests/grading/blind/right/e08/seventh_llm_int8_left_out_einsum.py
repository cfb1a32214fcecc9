# exercise: llm_int8
# differs: outlier columns are left out of the integer operands by index, and the floating part is
# an einsum over them
import torch


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    magnitude = x.abs()
    reaches = (magnitude >= threshold).sum(dim=0) > 0
    small = torch.nonzero(~reaches).flatten()
    large = torch.nonzero(reaches).flatten()
    per_token = torch.where(reaches, torch.zeros_like(x), magnitude).max(dim=1)[0] / 127
    per_token = torch.where(per_token > 0, per_token, torch.ones_like(per_token))
    x_codes = torch.round(x.index_select(1, small) / per_token[:, None])
    x_codes = x_codes.clamp(-127, 127).to(torch.int8)
    sums = multiply(x_codes, codes.index_select(1, small)).to(torch.float32)
    weights = codes.index_select(1, large).to(torch.float32) * scale
    exact = torch.einsum("tk,fk->tf", x.index_select(1, large), weights)
    return sums * torch.outer(per_token, scale[:, 0]) + exact
