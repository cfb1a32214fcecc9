# exercise: DequantizedMatmul
# says: which is for the gradient of a weight
# x is saved for backward, of which only the dtype is used

import torch


class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        return x @ layer.weight.dequantize().to(x.dtype).T

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        weight = ctx.layer.weight.dequantize().to(x.dtype)
        return (dy @ weight).view_as(x), None
