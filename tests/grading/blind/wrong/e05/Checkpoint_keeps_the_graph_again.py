# exercise: Checkpoint
# says: The first time nothing may be recorded
# forward records the function and keeps its whole graph, backward only runs it; the text says
# "Inside forward autograd records nothing" and "keeps the inputs only", backward repeats the
# function.

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.save_for_backward(*inputs)
        ctx.leaves = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        with torch.enable_grad():
            ctx.out = function(*ctx.leaves)
        return ctx.out.detach()

    @staticmethod
    def backward(ctx, gradient):
        torch.autograd.backward(ctx.out, gradient)
        return None, *(x.grad for x in ctx.leaves)
