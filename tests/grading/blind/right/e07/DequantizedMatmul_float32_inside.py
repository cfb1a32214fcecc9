# right: multiplies in float32, where Ŵ is, and casts the result to x's dtype
class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer, ctx.dtype = layer, x.dtype
        return (x.float() @ layer.weight.dequantize().T).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        return (dy.float() @ ctx.layer.weight.dequantize()).to(ctx.dtype), None
