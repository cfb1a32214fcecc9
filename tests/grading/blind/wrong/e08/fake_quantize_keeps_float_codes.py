# exercise: fake_quantize
# says: is all that backward needs
# Values and gradients are right, but the float32 codes round(w / scale) are kept for backward:
# four bytes a weight wait, where one is allowed.

import torch


def fake_quantize(w: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    m = 2 ** (bits - 1) - 1

    class Staircase(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, scale):
            steps = (w / scale).round()
            ctx.save_for_backward(steps)
            return steps.clamp(-m, m) * scale

        @staticmethod
        def backward(ctx, grad):
            (steps,) = ctx.saved_tensors
            return grad * (steps.abs() <= m), None

    return Staircase.apply(w, scale)
