# right: a loop over torch.split, group by group, written into preallocated results; no padding.
import torch


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    m = 2 ** (bits - 1) - 1
    codes = torch.empty(w.shape, dtype=torch.int8, device=w.device)
    scales = w.new_empty(w.shape[0], -(-w.shape[1] // group))
    for g, tile in enumerate(w.split(group, dim=1)):
        largest = torch.maximum(tile.amax(dim=1), -tile.amin(dim=1))
        step = largest / m
        step[step == 0] = 1.0
        scales[:, g] = step
        start = g * group
        q = torch.round(tile / step.unsqueeze(1)).clamp(-m, m)
        codes[:, start : start + tile.shape[1]] = q.to(torch.int8)
    return codes, scales
