# exercise: Checkpoint
# says: What is put on ctx itself is not watched for changes in place
# holds the inputs as ctx.inputs, where no saved-tensor hook sees them and a change of an input
# between forward and backward goes unnoticed; the text says "hold the inputs by
# ctx.save_for_backward".

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function, ctx.inputs = function, inputs
        ctx.state = torch.get_rng_state()
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.inputs]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)
