# exercise: Checkpoint
# says: the repetition dropped other elements
# Notes the generator's state after the function has run in forward, so the repetition draws the
# numbers that come next: another dropout mask.

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        result = function(*inputs)
        ctx.save_for_backward(*inputs)
        ctx.function = function
        ctx.state = torch.get_rng_state()
        return result

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            result = ctx.function(*inputs)
        torch.autograd.backward(result, gradient)
        return None, *(x.grad for x in inputs)
