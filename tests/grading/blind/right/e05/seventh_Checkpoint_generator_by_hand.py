# exercise: Checkpoint
# differs: the generator is put back by hand in try/finally, the backward of the repetition is run
# inside that, requires_grad is read off the saved tensors; and keep compares with a regular
# expression
import re

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.save_for_backward(*inputs)
        ctx.again = function, torch.default_generator.get_state()
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        function, then = ctx.again
        fresh = tuple(
            x.detach().requires_grad_() if x.requires_grad else x.detach()
            for x in ctx.saved_tensors
        )
        now = torch.default_generator.get_state()
        torch.default_generator.set_state(then)
        try:
            with torch.set_grad_enabled(True):
                out = function(*fresh)
            out.backward(gradient)
        finally:
            torch.default_generator.set_state(now)
        return (None,) + tuple(x.grad for x in fresh)


def keep(op: torch._ops.OpOverload) -> bool:
    pattern = r"(add)?mm|_scaled_dot_product_.*"
    return re.fullmatch(pattern, op.overloadpacket.__name__) is not None
