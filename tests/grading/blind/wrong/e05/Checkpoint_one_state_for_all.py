# exercise: Checkpoint
# says: with one use it is right
# the generator's state lies in one place for all checkpoints, so the latest forward overwrites
# it; the text: "Several functions may wait for their backward at once".

import torch

_replay = {}


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.save_for_backward(*inputs)
        _replay["state"] = torch.get_rng_state()
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(_replay["state"])
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)
