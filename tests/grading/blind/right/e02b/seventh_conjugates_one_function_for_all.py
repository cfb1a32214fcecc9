# exercise: conjugates
# differs: one Function for all pairs, which is handed both operations and notes the way back in
# its own ctx; returns lambdas, not .apply itself
import torch


class OneWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, go, come):
        ctx.come = come
        return go(x.detach().clone())

    @staticmethod
    def backward(ctx, dy):
        return ctx.come(dy.detach().clone()), None, None


def conjugates(there, back):
    return (
        lambda x: OneWay.apply(x, there, back),
        lambda x: OneWay.apply(x, back, there),
    )
