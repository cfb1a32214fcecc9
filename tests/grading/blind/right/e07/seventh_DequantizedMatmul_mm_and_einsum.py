# exercise: DequantizedMatmul
# differs: tokens flattened to two axes and torch.mm in forward, einsum in backward, no product
# where x wants no gradient
import torch


def _weight(layer, like):
    return layer.weight.dequantize().to(like.dtype)


class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.remembered = layer
        lead = x.shape[:-1]
        tokens = x.reshape(-1, x.shape[-1])
        y = torch.mm(tokens, _weight(layer, x).t())
        return y.view(*lead, y.shape[-1])

    @staticmethod
    def backward(ctx, dy):
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.einsum("...f,fd->...d", dy, _weight(ctx.remembered, dy))
        return dx, None
