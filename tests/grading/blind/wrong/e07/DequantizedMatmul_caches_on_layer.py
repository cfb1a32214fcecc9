# exercise: DequantizedMatmul
# says: as many as Ŵ has
# Ŵ is cached on the layer at the first call and used from there ever after: the floats stay,
# state is kept between calls

import torch


class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        if not hasattr(layer, "cached"):
            layer.cached = layer.weight.dequantize()
        ctx.layer = layer
        return x @ layer.cached.to(x.dtype).T

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.layer.cached.to(dy.dtype), None
