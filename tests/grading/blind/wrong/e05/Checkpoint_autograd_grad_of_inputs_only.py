# exercise: Checkpoint
# says: torch.autograd.grad only what it is asked for
# takes torch.autograd.grad of the inputs only, so the weights inside the function get no
# gradient

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            out = ctx.function(*inputs)
        wanted = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, gradient))
        return (None, *(next(found) if x.requires_grad else None for x in inputs))
