# exercise: fake_quantize
# differs: a torch.autograd.Function that saves the mask only
import torch


class _Staircase(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, scale, most):
        steps = torch.round(w / scale)
        ctx.save_for_backward(steps.abs() <= most)
        return torch.clamp(steps, -most, most).to(torch.int8) * scale

    @staticmethod
    def backward(ctx, gradient):
        (inside,) = ctx.saved_tensors
        return gradient.masked_fill(~inside, 0), None, None


def fake_quantize(w: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    return _Staircase.apply(w, scale, 2 ** (bits - 1) - 1)
