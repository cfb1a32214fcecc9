# exercise: Checkpoint
# says: leave the generator as backward found it
# backward leaves the generator where it stood after this forward, not where backward found it
# ("replay the generator's state, and leave it afterwards as you found it"): whatever was drawn
# in between is drawn again.

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.save_for_backward(*inputs)
        ctx.before = torch.get_rng_state()
        out = function(*inputs)
        ctx.after = torch.get_rng_state()
        return out

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        torch.set_rng_state(ctx.before)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        torch.set_rng_state(ctx.after)  # as it was
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)
