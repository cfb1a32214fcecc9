import torch


class DequantizedMatmul(torch.autograd.Function):
    """The newer form, with F.linear, and a weight that is remembered by its owner."""

    @staticmethod
    def forward(x, layer):
        weight = layer.weight.dequantize()
        return torch.nn.functional.linear(x, weight.to(x.dtype))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.owner = inputs

    @staticmethod
    def backward(ctx, dy):
        if not ctx.needs_input_grad[0]:
            return None, None
        weight = ctx.owner.weight.dequantize().to(dy.dtype)
        return torch.matmul(dy, weight), None
