# exercise: quantize_absmax
# differs: a loop over the groups with torch.split, no padding, and a scale of 1 for a group of
# zeros
import torch


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    m = (1 << (bits - 1)) - 1
    codes, scales = [], []
    for part in torch.split(w, group, dim=1):
        largest = torch.linalg.vector_norm(part, ord=float("inf"), dim=1, keepdim=True)
        s = largest / m
        s = torch.where(s < torch.finfo(torch.float32).tiny, torch.ones_like(s), s)
        codes.append(torch.round(part / s).to(torch.int8))
        scales.append(s)
    return torch.cat(codes, dim=1), torch.cat(scales, dim=1)
