# exercise: DequantizedMatmul
# says: Ŵ
# W hat is kept, as an attribute of ctx that no hook sees
class DequantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.w = layer.weight.dequantize().to(x.dtype)
        return x @ ctx.w.T

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.w, None
