# right: outlier columns are left out of the integer product (not zeroed), the rest is gathered by index; W is dequantized for the outliers alone.
import torch


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    reaches = (x.abs() >= threshold).any(dim=0)
    few, many = reaches.nonzero().flatten(), (~reaches).nonzero().flatten()
    rest = x.index_select(1, many)
    largest = torch.cat([rest.abs(), x.new_zeros(len(x), 1)], dim=1).amax(dim=1)
    step = largest / 127
    step = step.masked_fill(step == 0, 1.0)
    q = torch.round(rest / step.unsqueeze(1)).clamp(-127, 127).to(torch.int8)
    whole = multiply(q, codes.index_select(1, many)).to(torch.float32)
    y = torch.einsum("tf,t,f->tf", whole, step, scale.flatten())
    dear = codes.index_select(1, few).float() * scale
    return torch.addmm(y, x.index_select(1, few), dear.t())
