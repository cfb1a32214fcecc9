import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, *tensors):
        ctx.set_materialize_grads(True)
        ctx.run, ctx.then = run, torch.random.get_rng_state()
        ctx.save_for_backward(*tensors)
        return run(*tensors)

    @staticmethod
    def backward(ctx, d_out):
        leaves = []
        for tensor in ctx.saved_tensors:
            leaf = tensor.detach()
            leaf.requires_grad = tensor.requires_grad
            leaves.append(leaf)
        now = torch.random.get_rng_state()
        torch.random.set_rng_state(ctx.then)
        try:
            with torch.set_grad_enabled(True):
                again = ctx.run(*leaves)
                (again * d_out).sum().backward()
        finally:
            torch.random.set_rng_state(now)
        return (None, *[leaf.grad for leaf in leaves])
