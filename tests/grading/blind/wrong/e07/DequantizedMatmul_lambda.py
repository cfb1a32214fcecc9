# exercise: DequantizedMatmul
# says: It is made again in backward
# the closure keeps W hat alive
class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        w = layer.weight.dequantize().to(x.dtype)
        ctx.multiply = lambda dy: dy @ w
        return x @ w.T

    @staticmethod
    def backward(ctx, dy):
        return ctx.multiply(dy), None
