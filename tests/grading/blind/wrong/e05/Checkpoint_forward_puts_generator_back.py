# exercise: Checkpoint
# says: forward draws as the function does
# forward runs inside fork_rng, so the generator stands where it stood before and the next layer
# drops the same elements; the text says "forward draws as the function does".

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        with torch.random.fork_rng(devices=[]):
            return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)
