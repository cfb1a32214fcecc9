# exercise: Checkpoint
# says: with one use it is right
# the generator's state is kept on the class instead of on ctx, so a second checkpoint
# overwrites the first one's and the first drops other elements in backward ("Dropout must drop
# the same elements again").

import torch


class Checkpoint(torch.autograd.Function):
    state = None

    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.save_for_backward(*inputs)
        Checkpoint.state = torch.get_rng_state()
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(Checkpoint.state)
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)
