# exercise: Checkpoint
# says: with one use it is right
# the generator state is kept in a table by function, so a function that is applied twice
# (shared layer, two microbatches) before its backward replays the wrong state; "Several
# functions may wait for their backward at once", each must drop the same elements again.

import torch

_states = {}


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        _states[function] = torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(_states[ctx.function])
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)
