# exercise: DequantizedMatmul
# says: as many as Ŵ has
# Ŵ is kept on ctx, past save_for_backward, until backward instead of being made again

import torch


class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.weight = layer.weight.dequantize().to(x.dtype)
        return x @ ctx.weight.T

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.weight, None
