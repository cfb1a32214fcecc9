# exercise: DequantizedMatmul
# says: cast Ŵ to x's dtype
# the product is made in float32 and not cast back: for bfloat16 the output is not in x's dtype

import torch


class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x.float() @ layer.weight.dequantize().T

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.layer.weight.dequantize().to(dy.dtype), None
