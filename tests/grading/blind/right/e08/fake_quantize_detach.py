# right: a trick with detach; the forward adds an exact 0 to code times scale
import torch


def fake_quantize(w: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    top = 2 ** (bits - 1) - 1
    with torch.no_grad():
        q = torch.round(w / scale)
        outside = q.abs() > top
        left = q.clamp(-top, top) * scale
    moving = w.masked_fill(outside, 0.0)
    return left + (moving - moving.detach())
