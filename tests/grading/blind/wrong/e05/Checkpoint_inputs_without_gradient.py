# exercise: Checkpoint
# says: which must require a gradient, too
# says: what is detached requires no gradient
# The detached inputs do not require a gradient, so each x.grad is None: "One gradient for each
# input of forward".
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
        inputs = [x.detach() for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)
