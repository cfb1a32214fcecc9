# exercise: Checkpoint
# says: Keep torch.get_rng_state() in forward
# remembers torch.initial_seed() instead of the state, so it replays rightly only if nothing was
# drawn between the seed and this forward

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.seed = torch.initial_seed()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(ctx.seed)
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return (None, *(x.grad for x in inputs))
