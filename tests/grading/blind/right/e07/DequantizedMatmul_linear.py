# right: F.linear
class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.again = layer.weight.dequantize
        return torch.nn.functional.linear(x, layer.weight.dequantize().to(x.dtype))

    @staticmethod
    def backward(ctx, dy):
        if not ctx.needs_input_grad[0]:
            return None, None
        return torch.einsum("...f,fd->...d", dy, ctx.again().to(dy.dtype)), None
