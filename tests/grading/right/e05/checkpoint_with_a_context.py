import torch


class Checkpoint(torch.autograd.Function):
    """New style: forward without ctx, what is kept in setup_context."""

    @staticmethod
    def forward(function, *inputs):
        Checkpoint.state = torch.get_rng_state()
        return function(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.function, ctx.state = inputs[0], Checkpoint.state
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.saved_tensors]
        found = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        torch.set_rng_state(found)
        out.backward(gradient.clone())
        return None, *(x.grad for x in inputs)
