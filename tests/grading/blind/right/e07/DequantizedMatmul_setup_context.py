# right: the newer style with setup_context, and F.linear / einsum for the products
import torch


class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(x, layer):
        weight = layer.weight.dequantize()
        return torch.nn.functional.linear(x, weight.to(x.dtype))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.layer = inputs

    @staticmethod
    def backward(ctx, dy):
        if not ctx.needs_input_grad[0]:
            return None, None
        weight = ctx.layer.weight.dequantize().to(dy.dtype)
        return torch.einsum("...f,fd->...d", dy, weight), None
